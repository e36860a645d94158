"""The estimated work of an engine's steps: its unit, and the names of the counts that it follows from.

Owns: `Work`, and the names under which the statistics have the counts. Never does: count, or know a model's shapes; it
imports nothing that a command without an engine would wait for. Called by: the count of steps, the server's metrics,
`core_config.step_work`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

STEPS, TOKENS, SAMPLED = "steps", "tokens", "sampled"


def pairs_of(window: int) -> str:
    """Return the name of the number of keys that tokens saw."""
    return f"pairs:{window}"


def keys_of(window: int) -> str:
    """Return the name of the number of keys that rows read."""
    return f"keys:{window}"


class Work(NamedTuple):
    """Floating-point operations, and bytes of memory that one device reads and writes for them."""

    operations: float
    read: float
    written: float


WorkOf = Callable[[Mapping[str, int]], Work]
"""Returns the work of one device for counts of `core_observers.engine.work_counts`."""
