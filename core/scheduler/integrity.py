"""The scheduler's invariants.

Owns: `check_sequences`. Never does: change or repair anything. Called by: `Scheduler.check_integrity`.
"""

from __future__ import annotations

from core.kv.integrity import require
from core.scheduler.sequence import NO_SLOT, SequenceState, SequenceStatus
from core.scheduler.state import SchedulerState


def check_sequences(state: SchedulerState, *, num_in_flight: int) -> None:
    """Raise `IntegrityError` unless every live sequence either waits without blocks or runs within its limits.

    num_in_flight: steps without a result; while there are any, columns are ahead of what is confirmed. O(sequences).
    """
    live = set(state.roster)
    running = state.running.sequences
    waiting = [*state.waiting, *state.held]
    awaiting = list(state.awaiting)
    suspects = [suspect for suspect in state.seats.suspects if suspect.slot == NO_SLOT]
    counted = [*waiting, *awaiting, *suspects, *running]
    require(
        len(counted) == len(live) and live == set(counted),
        "live_sequences",
        f"{len(live)} live, {len(waiting)} waiting, {len(awaiting)} of them for their KV, {len(suspects)} suspected, "
        f"{len(running)} running",
    )
    num_live = len(state.roster)
    require(num_live == len(live), "num_live", f"{len(live)} live, {num_live} counted")
    for queue in (state.waiting, state.held):
        for sequence in queue:
            require(sequence.queue is queue, "waiting_sequences", f"{sequence.key} waits in another queue")  # type: ignore[attr-defined]
    for sequence in (*waiting, *suspects):
        assert isinstance(sequence, SequenceState)
        idle = sequence.status is SequenceStatus.WAITING and sequence.slot == NO_SLOT and not sequence.block_ids
        require(idle, "waiting_sequences", f"{sequence.key} waits but holds blocks, a slot or another status")
    for sequence in awaiting:
        aside = sequence.status is SequenceStatus.WAITING_FOR_KV and sequence.queue is None
        holds_nothing = sequence.slot == NO_SLOT and not sequence.block_ids
        wrong = f"{sequence.key} waits for its KV but is queued or holds a slot or blocks"
        require(aside and holds_nothing, "awaiting_kv", wrong)
    for sequence in running:
        _check_running(state, sequence, num_in_flight)
    _check_order(state)
    pressed = sum(sequence.was_preempted for sequence in live)
    num_pressed = state.seats.num_pressed
    require(pressed == num_pressed, "pressed", f"{pressed} live sequences were preempted, {num_pressed} counted")


def _check_running(state: SchedulerState, sequence: SequenceState, num_in_flight: int) -> None:
    key, slot, length = sequence.key, sequence.slot, len(sequence.token_ids)
    active = sequence.status is SequenceStatus.RUNNING and sequence.queue is None
    require(active, "running_sequences", f"{key} runs but is queued or has another status")
    require(
        sequence.num_computed_tokens < length and length + len(sequence.drafts) < sequence.max_length,
        "sequence_length",
        f"{key}: {length} tokens, {sequence.num_computed_tokens} computed, limit {sequence.max_length}",
    )
    columns = state.running
    require(columns.at(slot) is sequence, "slots", f"{key} has slot {slot}, which is another's")
    ahead = int(columns.length[slot]) - length
    require(
        0 <= ahead <= num_in_flight, "length_column", f"{key}: {columns.length[slot]} in the column, {length} known"
    )
    require(
        int(columns.capacity[slot]) == sequence.num_slots,
        "capacity_column",
        f"{key}: {columns.capacity[slot]} in the column, {sequence.num_slots} in blocks",
    )
    partial = columns.is_partial(sequence)
    if partial and not num_in_flight:
        agrees = sequence.num_planned_tokens == sequence.num_computed_tokens
        require(agrees, "planned_tokens", f"{key}: {sequence.num_planned_tokens} planned, nothing in flight")
    if not partial and not num_in_flight:
        require(
            sequence.num_pending == 1, "pending_tokens", f"{key} decodes with {sequence.num_pending} tokens pending"
        )


def _check_order(state: SchedulerState) -> None:
    columns = state.running
    require(len(columns) <= columns.max_num_seqs, "max_num_seqs", f"{len(columns)} sequences run")
    slots = {sequence.slot for sequence in columns.sequences}
    require(len(slots) == len(columns), "slots", "two sequences have one slot")
    require(
        slots.isdisjoint(columns.free_slots) and len(slots) + len(columns.free_slots) == columns.max_num_seqs,
        "slots",
        f"{len(slots)} slots are taken and {len(columns.free_slots)} are free of {columns.max_num_seqs}",
    )
    for listed in (columns.sequences, columns.partial):
        orders = [sequence.order for sequence in listed]
        require(orders == sorted(set(orders)), "running_order", "the running list is out of order")
    stops = sum(len(sequence.stop_token_ids) for sequence in columns.sequences)
    require(stops == columns.stop_ids.total(), "stop_ids", "the table of stop tokens is not that of who runs")
