"""The contract of a scheduling policy: the order of waiting requests, and the accounting of service per user.

Owns: the contract of the `policy` kind. Never does: admit, preempt, or touch blocks. Called by: policy plugins
(implement it) and the scheduler (calls it).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from core.api.messages import EngineRequest

Order = tuple[int, int]


class Queued(Protocol):
    """A sequence as a queue sees it; hashable by identity.

    order: the value that `SchedulingPolicy.order` returned. request: the request as received.
    """

    order: Order
    request: EngineRequest


class WaitingQueue(Protocol):
    """The sequences that wait. `peek` and `pop` need a non-empty queue. No operation may cost more than O(log n)."""

    def push(self, sequence: Queued, /) -> None:
        """Add a new arrival."""
        ...

    def restore(self, sequence: Queued, /) -> None:
        """Put back a sequence that was preempted or has waited for its keys and values, ahead of all later arrivals."""
        ...

    def peek(self) -> Queued:
        """Return the next sequence without removing it."""
        ...

    def pop(self) -> Queued:
        """Remove and return the next sequence."""
        ...

    def remove(self, sequence: Queued, /) -> None:
        """Remove a queued sequence, whatever its position."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Queued]:
        """Yield all sequences, in no particular order."""
        ...


class SchedulingPolicy(Protocol):
    """The scheduling policy of one engine, owned by its scheduler. charges: whether `charge` is called at all."""

    charges: bool

    def order(self, request: EngineRequest, arrival: int) -> Order:
        """Return the sort key of a sequence: of the running ones, the last is preempted first. arrival: 0, 1, 2, ..."""
        ...

    def make_queue(self) -> WaitingQueue:
        """Make an empty queue. All queues of a policy share its accounts of users."""
        ...

    def charge(self, request: EngineRequest, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """Account for the service to a request since the last call: prompt tokens computed, tokens generated."""
        ...
