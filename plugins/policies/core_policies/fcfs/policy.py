"""First come, first served.

Owns: `ArrivalQueue` and its policy. Never does: consider priorities or users. Called by: the scheduler, through
`core.api.policy`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import takewhile

from core.api.messages import EngineRequest
from core.api.policy import Order, Queued


class ArrivalQueue:
    """A queue in order of arrival. All operations are O(1), except `restore`."""

    def __init__(self) -> None:
        self._sequences: OrderedDict[Queued, None] = OrderedDict()

    def push(self, sequence: Queued, /) -> None:
        """Append a new arrival."""
        self._sequences[sequence] = None

    def restore(self, sequence: Queued, /) -> None:
        """Return a sequence to its former place. Only other restored sequences precede it, so few are examined."""
        earlier = list(takewhile(lambda queued: queued.order < sequence.order, self._sequences))
        for first in (sequence, *reversed(earlier)):
            self._sequences[first] = None
            self._sequences.move_to_end(first, last=False)

    def peek(self) -> Queued:
        """Return the next sequence."""
        return next(iter(self._sequences))

    def pop(self) -> Queued:
        """Remove and return the next sequence."""
        sequence, _ = self._sequences.popitem(last=False)
        return sequence

    def remove(self, sequence: Queued, /) -> None:
        """Remove a queued sequence."""
        del self._sequences[sequence]

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Queued]:
        return iter(self._sequences)


class FcfsPolicy:
    """Implements `core.api.policy.SchedulingPolicy`."""

    charges = False

    def order(self, request: EngineRequest, arrival: int) -> Order:
        """Return the order of arrival."""
        return 0, arrival

    def make_queue(self) -> ArrivalQueue:
        """Return an empty queue."""
        return ArrivalQueue()

    def charge(self, request: EngineRequest, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """Do nothing: service does not affect the order."""
