"""Sequences whose keys and values are on their way.

Owns: `AwaitingKV`: who stepped out of the queue to wait for pages, and who goes back. Never does: read pages, admit or end
anybody. Called by: admission and the scheduler's state.

A sequence that waits lets those behind it pass, and keeps its place: it goes back to its queue as if it had been preempted,
before all that arrived later.
"""

from __future__ import annotations

from collections.abc import Iterator

from core.api.policy import WaitingQueue
from core.kv.manager import KVManager
from core.scheduler.sequence import SequenceState, SequenceStatus

MAX_AWAITING = 8
"""More do not step aside: the look-up of each, which hashes its whole prompt, is part of a step."""


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
        """Whether nobody else may step aside."""
        return len(self._queues) >= MAX_AWAITING

    def add(self, sequence: SequenceState, queue: WaitingQueue) -> None:
        """Take a sequence out of its queue until its pages are there."""
        queue.remove(sequence)
        sequence.queue = None
        sequence.status = SequenceStatus.WAITING_FOR_KV
        self._queues[sequence] = queue

    def remove(self, sequence: SequenceState) -> None:
        """A sequence waits no longer, wherever it goes."""
        del self._queues[sequence]
        sequence.status = SequenceStatus.WAITING

    def restore_ready(self) -> None:
        """Put sequences whose wait is over back into their queues.

        The last one goes first, so that in the end the first one is first there.
        """
        for sequence in reversed(list(self._queues)):
            if self._kv.is_loaded(sequence):
                queue = self._queues[sequence]
                self.remove(sequence)
                sequence.queue = queue
                queue.restore(sequence)
