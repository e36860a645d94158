"""Token masks of a step's rows, obtained from their sequences.

Owns: the table of bitmasks that kernels read, and the handling of a mask that fails. Never does: decide what is allowed, or
look at logits. Called by: `core_runtime.sampling.sampler`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core_runtime.sampling.bitmask import num_words
from core_runtime.sampling.kernel import NO_TOKEN
from core_runtime.sampling.noise import Ids
from core_runtime.sampling.rows import SampleRows
from core_runtime.sampling.state import Bitmask, MaskError

NO_MASK: Final = -1
"""Index of a row without a mask: every token is allowed."""


@dataclass(slots=True)
class RowMasks:
    """The masks of consecutive rows of a step.

    words: int32 [M, W], see `core_runtime.sampling.bitmask`.
    index: int64 [R], the mask of each row in `words`, or NO_MASK.
    ending: rows whose mask allows only tokens that end the answer.
    """

    words: NDArray[np.int32]
    index: Ids
    ending: set[int]

    def of(self, places: Ids | slice) -> tuple[Tensor, Tensor]:
        """Return the masks of some of the rows for a `RaceKernel`. places: counted from the first of these rows."""
        index = np.ascontiguousarray(self.index[places])
        return torch.from_numpy(self.words), torch.from_numpy(index)

    def words_of(self, place: int) -> Bitmask | None:
        """Return the mask of one row; None: every token is allowed."""
        found = int(self.index[place])
        return None if found == NO_MASK else self.words[found]


def refused(rows: SampleRows, lazy: Sequence[int]) -> list[int]:
    """Return rows whose tokens, drawn without a mask, are not known to be allowed. A mask that fails ends its row."""
    found: list[int] = []
    tokens = rows.tokens
    for row in lazy:
        token = int(tokens[row])
        if token < 0:  # bad logits: nothing was drawn
            continue
        state = rows.state(row)
        assert state.mask is not None
        output = state.output(rows.index(row))
        try:
            if not state.mask.allows(output, rows.drafted(row), token):
                found.append(row)
        except MaskError as error:
            rows.errors[row] = str(error)
            tokens[row] = NO_TOKEN
    return found


class MaskTable:
    """Computes the masks of rows, and owns the memory of their words, which is valid until the next call."""

    def __init__(self, vocab_size: int) -> None:
        self._width = num_words(vocab_size)
        self._words: NDArray[np.int32] = np.empty((0, self._width), np.int32)

    def ask(self, rows: SampleRows, asked: Sequence[int], start: int, stop: int) -> RowMasks | None:
        """Compute the masks of some of the rows from `start` to `stop`; None when none of them restricts anything.

        A row whose mask fails gets the error, and a mask that allows no token.
        """
        if len(self._words) < len(asked):
            self._words = np.empty((len(asked), self._width), np.int32)
        index = np.full(stop - start, NO_MASK, np.int64)
        found = RowMasks(self._words, index, set())
        count = 0
        for row in asked:
            state = rows.state(row)
            mask = state.mask
            assert mask is not None
            output = state.output(rows.index(row))
            try:
                words = mask(output, rows.drafted(row))
            except MaskError as error:
                rows.errors[row] = str(error)
                words = np.zeros(self._width, np.int32)
            if words is None:
                continue
            # Copied: a bitmask is valid only until the sequence's next call, which may be for its next row.
            self._words[count] = words
            index[row - start] = count
            count += 1
            if mask.must_end:
                found.ending.add(row)
        found.words = self._words[:count]
        return found if count else None
