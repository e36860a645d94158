"""The policy. It changes who is served first, never what anybody gets."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from core.api.messages import EngineRequest
from core.api.policy import Order, Queued


class Queue:
    """A heap by `order`; what is removed from its middle is passed over later, and swept when it is most of all."""

    def __init__(self) -> None:
        self._heap: list[tuple[Order, Queued]] = []
        self._queued: set[Queued] = set()

    def push(self, sequence: Queued, /) -> None:
        """Add a sequence; one that was preempted finds its old place by itself."""
        self._queued.add(sequence)
        heapq.heappush(self._heap, (sequence.order, sequence))

    restore = push

    def peek(self) -> Queued:
        """The next sequence."""
        while self._heap[0][1] not in self._queued:
            heapq.heappop(self._heap)
        return self._heap[0][1]

    def pop(self) -> Queued:
        """Take the next sequence out."""
        sequence = self.peek()
        heapq.heappop(self._heap)
        self._queued.remove(sequence)
        return sequence

    def remove(self, sequence: Queued, /) -> None:
        """Take a sequence out, wherever it stands."""
        self._queued.remove(sequence)
        if len(self._heap) > 2 * len(self._queued) + 64:
            self._heap = [entry for entry in self._heap if entry[1] in self._queued]
            heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._queued)

    def __iter__(self) -> Iterator[Queued]:
        return iter(self._queued)


class Policy:
    """Implements `core.api.policy.SchedulingPolicy`."""

    charges = False

    def order(self, request: EngineRequest, arrival: int) -> Order:
        """By the length of the prompt, then by arrival."""
        return len(request.prompt_token_ids), arrival

    def make_queue(self) -> Queue:
        """An empty queue."""
        return Queue()

    def charge(self, request: EngineRequest, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """Nobody pays."""
