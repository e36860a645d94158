"""The tokens of running sequences, by slot.

Owns: prompt and output of each sequence, and the drafts behind them while a step verifies these. Never does: know what a
step computes. Called by: the persistent batch; the sampling states read their sequence's row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from core.api.step_plan import Int32Array, Slot

ONE: Final = np.array(1)
"""numpy adds it in half the time of a Python number."""

Slots = NDArray[np.int64]
"""numpy indexes with 64-bit integers several times faster than with others."""


@dataclass(frozen=True, slots=True)
class Expected:
    """One token for each of some sequences, which counts as known and is told later.

    slots: int64 [R].
    places: int64 [R], where each goes in the flat table.
    lives: int64 [R], the life of each slot: what is told of an earlier one is of no use.
    """

    slots: Slots
    places: Slots
    lives: Slots


class TokenTable:
    """int32 [num_slots, length]; rows that no sequence reaches cost no memory.

    array: prompt, output, then drafts; what is behind them is stale.
    num_prompt_tokens: int32 [num_slots].
    num_expected: int32 [num_slots], the newest tokens of each sequence that are only expected; they are stale.
    """

    def __init__(self, num_slots: int, length: int) -> None:
        self.array = np.zeros((num_slots, length), np.int32)
        self.num_prompt_tokens = np.zeros(num_slots, np.int32)
        self.num_expected = np.zeros(num_slots, np.int32)
        self._lives = np.zeros(num_slots, np.int64)
        self._length = length
        self._flat = self.array.reshape(-1)
        # where the next token of each sequence goes in the flat table
        self._ends = np.arange(num_slots, dtype=np.int64) * length

    def start(self, slot: Slot, prompt: Sequence[int], output: Sequence[int]) -> NDArray[np.int32]:
        """A sequence takes a slot; returns its row, which grows with it."""
        row: NDArray[np.int32] = self.array[slot]
        split = len(prompt)
        known = split + len(output)
        row[:split] = prompt
        row[split:known] = output
        self.num_prompt_tokens[slot] = split
        self.num_expected[slot] = 0
        self._lives[slot] += 1
        self._ends[slot] = slot * self._length + known
        return row

    def num_tokens(self, slots: Slots) -> Int32Array:
        """Known tokens of each of these sequences: prompt and output."""
        starts = slots * self._length
        counts = self._ends[slots] - starts
        return counts.astype(np.int32)

    def count(self, slot: Slot) -> int:
        """Known tokens of one sequence."""
        return int(self._ends[slot]) - slot * self._length

    def output(self, slot: Slot) -> Int32Array:
        """The output of one sequence so far, int32 [n]; valid until the next step."""
        first = int(self.num_prompt_tokens[slot])
        known = self.count(slot)
        output: Int32Array = self.array[slot, first:known]
        return output

    def behind(self, slot: Slot, start: int) -> list[int]:
        """The known tokens of one sequence from position `start` on."""
        known = int(self._ends[slot]) - slot * self._length
        tokens: list[int] = self.array[slot, start:known].tolist()
        return tokens

    def extend(self, slots: Slots, token_ids: Int32Array) -> None:
        """One new token for each of these sequences."""
        ends = self._ends[slots]
        self._flat[ends] = token_ids
        self._ends[slots] = ends + ONE

    def expect(self, slots: Slots) -> Expected:
        """Each of these sequences has a token more, which `tell` writes."""
        places = self._ends[slots]
        self._ends[slots] = places + ONE
        self.num_expected[slots] += 1
        return Expected(slots, places, self._lives[slots])

    def tell(self, expected: Expected, token_ids: Int32Array) -> None:
        """The tokens that were expected, int32 [R]; those of sequences that have left since are passed over."""
        slots = expected.slots
        places = expected.places
        is_alive = self._lives[slots] == expected.lives
        if not is_alive.all():
            slots = slots[is_alive]
            places = places[is_alive]
            token_ids = token_ids[is_alive]
        self._flat[places] = token_ids
        self.num_expected[slots] -= 1

    def extend_one(self, slot: Slot, token_ids: Sequence[int]) -> None:
        """New tokens for one sequence."""
        self.write_drafts(slot, token_ids)
        self._ends[slot] += len(token_ids)

    def write_drafts(self, slot: Slot, token_ids: Sequence[int]) -> None:
        """Put tokens behind the known ones, which they may become."""
        start = self._ends[slot]
        stop = start + len(token_ids)
        self._flat[start:stop] = token_ids
