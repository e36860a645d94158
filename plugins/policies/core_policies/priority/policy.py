"""Lowest priority number first, then by arrival.

Owns: `PriorityQueue` and its policy. Never does: consider users. Called by: the scheduler, through `core.api.policy`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from core.api.messages import EngineRequest
from core.api.policy import Order, Queued


class PriorityQueue:
    """Lowest `order` first. Push and pop O(log n); remove O(1) amortized: it leaves a gap that is swept later."""

    def __init__(self) -> None:
        self._heap: list[tuple[Order, Queued]] = []
        self._queued: set[Queued] = set()

    def push(self, sequence: Queued, /) -> None:
        """Add a sequence, new or restored."""
        self._queued.add(sequence)
        heapq.heappush(self._heap, (sequence.order, sequence))

    restore = push

    def peek(self) -> Queued:
        """Return the next sequence."""
        while True:
            _, sequence = self._heap[0]
            if sequence in self._queued:
                return sequence
            heapq.heappop(self._heap)  # it was removed while it was in the heap

    def pop(self) -> Queued:
        """Remove and return the next sequence."""
        sequence = self.peek()
        heapq.heappop(self._heap)
        self._queued.remove(sequence)
        return sequence

    def remove(self, sequence: Queued, /) -> None:
        """Remove a queued sequence."""
        self._queued.remove(sequence)
        if len(self._heap) > 2 * len(self._queued):
            self._heap = [(order, queued) for order, queued in self._heap if queued in self._queued]
            heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._queued)

    def __iter__(self) -> Iterator[Queued]:
        return iter(self._queued)


class PriorityPolicy:
    """Implements `core.api.policy.SchedulingPolicy`."""

    charges = False

    def order(self, request: EngineRequest, arrival: int) -> Order:
        """Return the order by priority, then by arrival."""
        return request.priority, arrival

    def make_queue(self) -> PriorityQueue:
        """Return an empty queue."""
        return PriorityQueue()

    def charge(self, request: EngineRequest, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """Do nothing: service does not affect the order."""
