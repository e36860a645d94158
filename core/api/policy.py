"""What a scheduling policy is: the order of waiting requests, and who pays for what.

Owns: the contract of the `policy` kind. Never does: admit, preempt, or touch blocks. Called by: policy plugins
(implement it) and the scheduler (asks).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from core.api.messages import EngineRequest

Order = tuple[int, int]


class Queued(Protocol):
    """A sequence as a queue sees it; hashable by identity.

    order: as `SchedulingPolicy.order` answered. request: as it came.
    """

    order: Order
    request: EngineRequest


class WaitingQueue(Protocol):
    """Sequences that wait. `peek` and `pop` need a non-empty queue. Nothing may cost more than O(log n)."""

    def push(self, sequence: Queued, /) -> None:
        """Add a new arrival."""
        ...

    def restore(self, sequence: Queued, /) -> None:
        """Put back a sequence that was preempted, or that has waited for its keys and values: before all that arrived
        after it."""
        ...

    def peek(self) -> Queued:
        """The next sequence."""
        ...

    def pop(self) -> Queued:
        """Take the next sequence out."""
        ...

    def remove(self, sequence: Queued, /) -> None:
        """Take a queued sequence out, wherever it stands."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Queued]:
        """All sequences, in no promised order."""
        ...


class SchedulingPolicy(Protocol):
    """One engine's policy. charges: whether `charge` is to be called at all."""

    charges: bool

    def order(self, request: EngineRequest, arrival: int) -> Order:
        """Sorts running sequences: the last one is the first to be preempted. arrival: 0, 1, 2, ..."""
        ...

    def make_queue(self) -> WaitingQueue:
        """An empty queue. A policy's queues share what it knows of users."""
        ...

    def charge(self, request: EngineRequest, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """Service that a request was given since the last call: prompt tokens computed, tokens generated."""
        ...
