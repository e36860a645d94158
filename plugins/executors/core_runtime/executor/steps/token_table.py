"""The tokens of running sequences, by slot.

Owns: prompt and output of each sequence, and its drafts while a step verifies them. Never does: know what a
step computes. Called by: the persistent batch; the sampling states read their sequence's row.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from core.api.step_plan import Int32Array, Slot

ONE: Final = np.array(1)
"""A numpy scalar: adding it takes half the time of adding a Python int."""

Slots = NDArray[np.int64]
"""numpy indexes with 64-bit integers several times faster than with others."""


@dataclass(frozen=True, slots=True)
class Expected:
    """One token for each of some sequences, which counts as known but is written later.

    slots: int64 [R].
    places: int64 [R], index of each token in the flat table.
    lives: int64 [R], life of each slot; a token for an earlier life is ignored.
    """

    slots: Slots
    places: Slots
    lives: Slots


class TokenTable:
    """The tokens of all slots, int32 [num_slots, length]; pages that no sequence reaches cost no memory.

    array: prompt, output, then drafts; entries after them are stale.
    num_prompt_tokens: int32 [num_slots].
    num_expected: int32 [num_slots], number of each sequence's newest tokens that are not written yet; their entries are
        stale.
    """

    def __init__(self, num_slots: int, length: int) -> None:
        self.array = np.zeros((num_slots, length), np.int32)
        self.num_prompt_tokens = np.zeros(num_slots, np.int32)
        self.num_expected = np.zeros(num_slots, np.int32)
        self._lives = np.zeros(num_slots, np.int64)
        self._length = length
        self._flat = self.array.reshape(-1)
        # flat index of each sequence's next token
        self._ends = np.arange(num_slots, dtype=np.int64) * length

    def start(self, slot: Slot, prompt: Sequence[int], output: Sequence[int]) -> NDArray[np.int32]:
        """Start a sequence. Returns its row, a view in which its output will appear."""
        row: NDArray[np.int32] = self.array[slot]
        split = len(prompt)
        known = split + len(output)
        # An array first, of unsigned integers: numpy takes three times as long to read a list, signed ones take five times.
        row[:split] = array("I", prompt)
        row[split:known] = output
        self.num_prompt_tokens[slot] = split
        self.num_expected[slot] = 0
        # A step in flight may still deliver a token of the slot's previous sequence; `tell` ignores it by this number.
        self._lives[slot] += 1
        self._ends[slot] = slot * self._length + known
        return row

    def num_tokens(self, slots: Slots) -> Int32Array:
        """Return the number of known tokens of each sequence, prompt and output, int32 [B]."""
        starts = slots * self._length
        counts = self._ends[slots] - starts
        return counts.astype(np.int32)

    def count(self, slot: Slot) -> int:
        """Return the number of known tokens of one sequence."""
        return int(self._ends[slot]) - slot * self._length

    def lives(self, slots: Any) -> Any:
        """Return the life of one slot or of several: a number that changes with each sequence in it."""
        return self._lives[slots]

    def output(self, slot: Slot) -> Int32Array:
        """Return the output of one sequence so far, int32 [n]; valid until the next step."""
        first = int(self.num_prompt_tokens[slot])
        known = self.count(slot)
        output: Int32Array = self.array[slot, first:known]
        return output

    def behind(self, slot: Slot, start: int) -> list[int]:
        """Return the known tokens of one sequence from position `start` on."""
        known = int(self._ends[slot]) - slot * self._length
        tokens: list[int] = self.array[slot, start:known].tolist()
        return tokens

    def extend(self, slots: Slots, token_ids: Int32Array) -> None:
        """Append one token to each of these sequences."""
        ends = self._ends[slots]
        self._flat[ends] = token_ids
        self._ends[slots] = ends + ONE

    def expect(self, slots: Slots) -> Expected:
        """Append one token to each of these sequences, whose value `tell` writes later."""
        places = self._ends[slots]
        self._ends[slots] = places + ONE
        self.num_expected[slots] += 1
        return Expected(slots, places, self._lives[slots])

    def tell(self, expected: Expected, token_ids: Int32Array) -> None:
        """Write expected tokens, int32 [R]; those of sequences that have left since are ignored."""
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
        """Append tokens to one sequence."""
        self.write_drafts(slot, token_ids)
        self._ends[slot] += len(token_ids)

    def write_drafts(self, slot: Slot, token_ids: Sequence[int]) -> None:
        """Write tokens after the known ones, without making them known."""
        start = self._ends[slot]
        stop = start + len(token_ids)
        self._flat[start:stop] = token_ids
