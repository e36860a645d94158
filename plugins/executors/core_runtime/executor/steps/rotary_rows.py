"""The rotary positions of sequences with media whose rows have three positions (M-RoPE).

Owns: by how much the rotary position of each token of text differs from its place in the sequence, and the column of a step.
Never does: write the positions of rows of media (the forward pass does). Called by: the persistent batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from core.api.messages import MediaItem
from core.api.step_plan import Int32Array, Slot
from core_runtime.executor.steps.buffers import StepBuffer

Positions = NDArray[np.int64]


class Shifts(NamedTuple):
    """The shifts of a prompt's text. ends: int64 [n], ends of its items. by: int64 [n + 1], before each, and after all."""

    ends: Positions
    by: Positions


def shifts_of(items: Sequence[MediaItem]) -> Shifts:
    """Return the shifts of a prompt with these items. Text goes on after the largest position of an item."""
    ends = np.array([item.stop for item in items], np.int64)
    saved = [_extent(item.grid) - (item.stop - item.start) if item.grid else 0 for item in items]
    return Shifts(ends, np.cumsum([0, *saved], dtype=np.int64))


def _extent(grid: Sequence[int]) -> int:
    """Return the positions that an item takes: the most in any direction, with the rows that are left out."""
    time, height, width = grid[:3]
    return max(height, width, grid[2 + time] if len(grid) > 3 else time)


def places_of(items: Sequence[MediaItem]) -> Positions:
    """Return the three positions of each row of these items, int64 [rows, 3]."""
    starts = np.array([item.start for item in items], np.int64) + shifts_of(items).by[:-1]
    places: list[Positions] = []
    for item, start in zip(items, starts.tolist(), strict=True):
        places.append(start + _own_places(item))
    return np.concatenate(places)


def _own_places(item: MediaItem) -> Positions:
    """Return the three positions of each row of an item, from its first one on, int64 [rows, 3]."""
    if not item.grid:
        return np.arange(item.stop - item.start, dtype=np.int64)[:, None].repeat(3, 1)
    behind = 3 + item.grid[0]
    own = np.indices(item.grid[:3]).reshape(3, -1).T
    if len(item.grid) > 3:
        own[:, 0] = np.array(item.grid[3:behind], np.int64)[own[:, 0]] - 1
    return own[np.array(item.grid[behind:], np.int64) - 1] if len(item.grid) > behind else own


class RotaryRows:
    """The rotary positions of the batch's sequences, by slot. column: of a step's tokens."""

    def __init__(self, num_slots: int, column: StepBuffer) -> None:
        self._column = column
        self._after = np.zeros(num_slots, np.int64)
        self._shifts: dict[Slot, Shifts] = {}

    def start(self, slot: Slot, items: Sequence[MediaItem]) -> None:
        """Start a sequence whose prompt has these items."""
        if items:
            self._shifts[slot] = shifts = shifts_of(items)
            self._after[slot] = shifts.by[-1]

    def end(self, slot: Slot) -> None:
        """Forget a sequence."""
        self._shifts.pop(slot, None)
        self._after[slot] = 0

    def fill(self, positions: Positions, slots: Int32Array, lens: Int32Array) -> None:
        """Write the column of a step whose positions are written; those of rows of media have no meaning yet."""
        ends = np.cumsum(lens)
        rotary = self._column.array[: ends[-1]]
        np.add(positions[: ends[-1]], np.repeat(self._after[slots], lens), out=rotary)
        for slot, start, end in zip(slots.tolist(), (ends - lens).tolist(), ends.tolist(), strict=True):
            shifts = self._shifts.get(slot)
            if shifts is not None and positions[start] < shifts.ends[-1]:
                own = positions[start:end]
                rotary[start:end] = own + shifts.by[np.searchsorted(shifts.ends, own, side="right")]

    def advance(self, positions: Positions, slots: Int32Array) -> None:
        """Write the column of a step in which each sequence computes one token, behind its prompt."""
        np.add(positions, self._after[slots], out=self._column.array[: len(slots)])
