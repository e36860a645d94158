"""Counts steps by their size.

Owns: `StepCounts`. Never does: export them. Called by: `EngineCore` with each step that computed something.
"""

from __future__ import annotations

from bisect import bisect_left

from core.api.step_sizes import STEP_BOUNDS


class StepCounts:
    """row: see `core.api.step_sizes`."""

    def __init__(self) -> None:
        self.row = [0] * (len(STEP_BOUNDS) + 2)

    def add(self, num_tokens: int) -> None:
        """Count one step."""
        bucket = bisect_left(STEP_BOUNDS, num_tokens)
        self.row[bucket] += 1
        self.row[-1] += num_tokens
