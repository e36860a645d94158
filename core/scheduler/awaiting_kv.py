"""Sequences that have stepped aside, so that later ones may overtake them.

Owns: `Aside`: sequences outside their queue, and their return; `AwaitingKV`: those whose keys and values are being loaded.
Never does: read pages, admit or end a sequence. Called by: admission and the scheduler's state.

A sequence keeps its place: it returns to its queue as if it had been preempted, before all that arrived later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter

from core.api.kv_load import KVLoad
from core.api.policy import WaitingQueue
from core.kv.connector import KVConnector
from core.kv.manager import KVManager
from core.scheduler.sequence import SequenceState


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
    """Sequences between two look-ups, by their loads. num_keys: keys of their blocks, which take memory."""

    def __init__(self, kv: KVManager) -> None:
        super().__init__()
        self._kv = kv
        self._by_load: dict[KVLoad, tuple[int, SequenceState]] = {}
        self.num_keys = 0

    def add(self, sequence: SequenceState) -> None:
        """Move a sequence whose look-up has begun a load out of its queue."""
        super().add(sequence)
        assert sequence.load is not None
        num_keys = len(sequence.token_ids) // self._kv.block_size
        self.num_keys += num_keys
        self._by_load[sequence.load] = (num_keys, sequence)

    def remove(self, sequence: SequenceState) -> None:
        """Remove a sequence that has ended; its load ends with its blocks."""
        super().remove(sequence)
        assert sequence.load is not None
        self.num_keys -= self._by_load.pop(sequence.load)[0]

    def restore_ready(self) -> None:
        """Return sequences whose wait is over to their queues. O(1) for all others."""
        over = [self._by_load.pop(load) for load in self._kv.loads.over() if load in self._by_load]
        if over:
            self.num_keys -= sum(num_keys for num_keys, _ in over)
            self.restore(sorted((sequence for _, sequence in over), key=attrgetter("order")))

    def waits_for(self, sequence: SequenceState) -> str:
        """Return the place whose pages it waits for."""
        assert sequence.load is not None
        return self._kv.loads.owners.get(sequence.load, KVConnector).argument
