"""Sequences that have stepped aside, so that later ones may overtake them.

Owns: `Aside`: sequences outside their queue, and their return; `AwaitingKV`: those whose keys and values are being loaded.
Never does: read pages, admit or end a sequence. Called by: admission and the scheduler's state.

A sequence keeps its place: it returns to its queue as if it had been preempted, before all that arrived later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from core.api.policy import WaitingQueue
from core.kv.manager import KVManager
from core.scheduler.sequence import SequenceState

MAX_AWAITING = 8
"""Maximum number of sequences that wait. The look-up of each hashes its whole prompt while a step is planned."""


class Aside:
    """Sequences in the order in which they stepped aside; in place of a queue, `queue` of each is this object."""

    def __init__(self) -> None:
        self._queues: dict[SequenceState, WaitingQueue] = {}

    def __len__(self) -> int:
        return len(self._queues)

    def __iter__(self) -> Iterator[SequenceState]:
        return iter(self._queues)

    def add(self, sequence: SequenceState) -> None:
        """Move a sequence out of its queue."""
        queue = sequence.queue
        assert queue is not None and not isinstance(queue, Aside)
        queue.remove(sequence)
        sequence.queue = self
        self._queues[sequence] = queue

    def remove(self, sequence: SequenceState) -> None:
        """Remove a sequence that has ended."""
        del self._queues[sequence]

    def restore(self, sequences: Iterable[SequenceState]) -> None:
        """Return sequences to their queues.

        The last one is returned first: `restore` puts a sequence at the head, so that in the end the first one is first.
        """
        for sequence in reversed(list(sequences)):
            queue = sequence.queue = self._queues.pop(sequence)
            queue.restore(sequence)

    def waits_for(self, sequence: SequenceState) -> str:
        """Return the engine argument that an explanation names for a sequence here."""
        raise NotImplementedError


class AwaitingKV(Aside):
    """Sequences between two look-ups."""

    def __init__(self, kv: KVManager) -> None:
        super().__init__()
        self._kv = kv

    @property
    def is_full(self) -> bool:
        """Whether no further sequence may step aside."""
        return len(self) >= MAX_AWAITING

    def restore_ready(self) -> None:
        """Return sequences whose wait is over to their queues."""
        self.restore(filter(self._kv.is_loaded, self))

    def waits_for(self, sequence: SequenceState) -> str:
        """Return the place whose pages it waits for."""
        return self._kv.waits_for(sequence)
