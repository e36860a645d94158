"""Sequences that wait for their keys and values to be loaded.

Owns: `AwaitingKV`: the sequences that left their queue to wait for pages, and their return. Never does: read pages, admit or
end a sequence. Called by: admission and the scheduler's state.

Later sequences may overtake one that waits, but it keeps its place: it returns to its queue as if it had been preempted,
before all that arrived later.
"""

from __future__ import annotations

from collections.abc import Iterator

from core.api.policy import WaitingQueue
from core.kv.manager import KVManager
from core.scheduler.sequence import SequenceState, SequenceStatus

MAX_AWAITING = 8
"""Maximum number of sequences that wait. The look-up of each hashes its whole prompt while a step is planned."""


class AwaitingKV:
    """Sequences between two look-ups, in the order in which they stepped aside."""

    def __init__(self, kv: KVManager) -> None:
        self._kv = kv
        self._queues: dict[SequenceState, WaitingQueue] = {}

    def __len__(self) -> int:
        return len(self._queues)

    def __iter__(self) -> Iterator[SequenceState]:
        return iter(self._queues)

    @property
    def is_full(self) -> bool:
        """Whether no further sequence may step aside."""
        return len(self._queues) >= MAX_AWAITING

    def add(self, sequence: SequenceState, queue: WaitingQueue) -> None:
        """Move a sequence out of its queue until its pages are loaded."""
        queue.remove(sequence)
        sequence.queue = None
        sequence.status = SequenceStatus.WAITING_FOR_KV
        self._queues[sequence] = queue

    def remove(self, sequence: SequenceState) -> None:
        """Remove a sequence that no longer waits, whether it returns to its queue or ends."""
        del self._queues[sequence]
        sequence.status = SequenceStatus.WAITING

    def restore_ready(self) -> None:
        """Return sequences whose wait is over to their queues.

        The last one is returned first: `restore` puts a sequence at the head, so that in the end the first one is first.
        """
        for sequence in reversed(list(self._queues)):
            if self._kv.is_loaded(sequence):
                queue = self._queues[sequence]
                self.remove(sequence)
                sequence.queue = queue
                queue.restore(sequence)
