"""Two classes of requests under any policy: the batch class comes after all others.

Owns: `TwoClasses`, which puts a policy's queues together with those of a second instance, so that each class has accounts
of its own. Never does: admit or preempt. Called by: the engine, which wraps every policy, and the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator

from core.api.messages import EngineRequest
from core.api.policy import Order, Queued, SchedulingPolicy, WaitingQueue

LAST = 1 << 62
"""Added to the order of the batch class; larger than any priority."""


class TwoQueues:
    """The queues of both classes as one. first: of all others. last: of the batch class."""

    def __init__(self, first: WaitingQueue, last: WaitingQueue) -> None:
        self._first = first
        self._last = last
        self._length = 0  # each step asks for it several times

    def push(self, sequence: Queued, /) -> None:
        """Add a new arrival to the queue of its class."""
        self._of(sequence).push(sequence)
        self._length += 1

    def restore(self, sequence: Queued, /) -> None:
        """Return a sequence to its former place in the queue of its class."""
        self._of(sequence).restore(sequence)
        self._length += 1

    def peek(self) -> Queued:
        """Return the next sequence: one of the batch class only where there is no other."""
        return self._next().peek()

    def pop(self) -> Queued:
        """Remove and return the next sequence."""
        sequence = self._next().pop()
        self._length -= 1
        return sequence

    def remove(self, sequence: Queued, /) -> None:
        """Remove a queued sequence."""
        self._of(sequence).remove(sequence)
        self._length -= 1

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Queued]:
        yield from self._first
        yield from self._last

    def _next(self) -> WaitingQueue:
        return self._first if len(self._first) else self._last

    def _of(self, sequence: Queued) -> WaitingQueue:
        return self._last if sequence.request.flex else self._first


class TwoClasses:
    """Implements `core.api.policy.SchedulingPolicy`. first: policy of all others. last: of the batch class."""

    has_flex = True

    def __init__(self, first: SchedulingPolicy, last: SchedulingPolicy) -> None:
        self.charges = first.charges
        self._first = first
        self._last = last

    def order(self, request: EngineRequest, arrival: int) -> Order:
        """Return the order of the request's policy; the batch class comes after all others."""
        if not request.flex:
            return self._first.order(request, arrival)
        place, number = self._last.order(request, arrival)
        return LAST + place, number

    def make_queue(self) -> TwoQueues:
        """Return an empty queue for both classes."""
        return TwoQueues(self._first.make_queue(), self._last.make_queue())

    def charge(self, request: EngineRequest, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """Charge the request's user in the accounts of the request's class."""
        policy = self._last if request.flex else self._first
        policy.charge(request, num_prompt_tokens, num_output_tokens)
