"""Waiting sequences in the order of a policy.

Owns: the `WaitingQueue` interface, one class a policy, and `make_queue`. Never does: admit, or touch blocks.
Called by: the scheduler. A sequence can be removed from the middle when its request is cancelled.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol

from core.api.errors import ConfigError, nearest
from core.scheduler.sequence import SequenceState


class WaitingQueue(Protocol):
    """Sequences that wait. `peek` and `pop` need a non-empty queue."""

    def push(self, sequence: SequenceState) -> None:
        """Add a new arrival."""

    def restore(self, sequence: SequenceState) -> None:
        """Put a preempted sequence back, before all that arrived after it; the last one preempted comes first."""

    def peek(self) -> SequenceState:
        """The next sequence."""

    def pop(self) -> SequenceState:
        """Take the next sequence out."""

    def remove(self, sequence: SequenceState) -> None:
        """Take a queued sequence out, wherever it stands."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[SequenceState]:
        """All sequences, in no promised order."""


class FCFSQueue:
    """First come, first served. All operations O(1)."""

    def __init__(self) -> None:
        self._sequences: OrderedDict[SequenceState, None] = OrderedDict()

    def push(self, sequence: SequenceState) -> None:
        """Add a new arrival."""
        self._sequences[sequence] = None

    def restore(self, sequence: SequenceState) -> None:
        """Put a preempted sequence first."""
        self._sequences[sequence] = None
        self._sequences.move_to_end(sequence, last=False)

    def peek(self) -> SequenceState:
        """The next sequence."""
        return next(iter(self._sequences))

    def pop(self) -> SequenceState:
        """Take the next sequence out."""
        return self._sequences.popitem(last=False)[0]

    def remove(self, sequence: SequenceState) -> None:
        """Take a queued sequence out."""
        del self._sequences[sequence]

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[SequenceState]:
        return iter(self._sequences)


class PriorityQueue:
    """Lowest `order` first. Push and pop O(log n); remove O(1) amortized: it leaves a gap that is swept later."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], SequenceState]] = []
        self._queued: set[SequenceState] = set()

    def push(self, sequence: SequenceState) -> None:
        """Add a new arrival."""
        self._queued.add(sequence)
        heapq.heappush(self._heap, (sequence.order, sequence))

    restore = push

    def peek(self) -> SequenceState:
        """The next sequence."""
        while self._heap[0][1] not in self._queued:
            heapq.heappop(self._heap)
        return self._heap[0][1]

    def pop(self) -> SequenceState:
        """Take the next sequence out."""
        sequence = self.peek()
        heapq.heappop(self._heap)
        self._queued.remove(sequence)
        return sequence

    def remove(self, sequence: SequenceState) -> None:
        """Take a queued sequence out."""
        self._queued.remove(sequence)
        if len(self._heap) > 2 * len(self._queued):
            self._heap = [entry for entry in self._heap if entry[1] in self._queued]
            heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._queued)

    def __iter__(self) -> Iterator[SequenceState]:
        return iter(self._queued)


def make_queue(policy: str) -> WaitingQueue:
    """The queue of a policy; `ConfigError` for an unknown one."""
    if policy == "fcfs":
        return FCFSQueue()
    if policy == "priority":
        return PriorityQueue()
    raise ConfigError(
        [f"The scheduling policy is '{policy}'; expected fcfs or priority.{nearest(policy, ('fcfs', 'priority'))}"]
    )
