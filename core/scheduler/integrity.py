"""The scheduler's invariants.

Owns: `check_sequences`. Never does: change or repair anything. Called by: `Scheduler.check_integrity`.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from core.kv.integrity import require
from core.scheduler.sequence import SequenceState, SequenceStatus


def check_sequences(
    live: AbstractSet[SequenceState],
    waiting: Sequence[SequenceState],
    running: Sequence[SequenceState],
    max_num_seqs: int,
) -> None:
    """Raise `IntegrityError` unless every live sequence either waits without blocks or runs within its limits."""
    require(len(running) <= max_num_seqs, "max_num_seqs", f"{len(running)} sequences run, {max_num_seqs} may")
    require(
        len(waiting) + len(running) == len(live) and live == {*waiting, *running},
        "live_sequences",
        f"{len(live)} live, {len(waiting)} waiting, {len(running)} running",
    )
    for sequence in waiting:
        idle = sequence.status is SequenceStatus.WAITING and not sequence.in_batch and not sequence.block_ids
        require(idle, "waiting_sequences", f"{sequence.key} waits but holds blocks, a seat or another status")
    for sequence in running:
        active = sequence.status is SequenceStatus.RUNNING and sequence.in_batch
        require(active, "running_sequences", f"{sequence.key} runs but has no seat or another status")
        length = len(sequence.token_ids)
        require(
            sequence.num_computed_tokens < length and length + len(sequence.drafts) < sequence.max_length,
            "sequence_length",
            f"{sequence.key}: {length} tokens, {sequence.num_computed_tokens} computed, limit {sequence.max_length}",
        )
    orders = [sequence.order for sequence in running]
    require(orders == sorted(orders), "running_order", "the running list is out of order")
