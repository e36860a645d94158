"""The rows whose logits are changed before they compete, drawn from copies of them.

Owns: the copies, and what becomes of a row whose changes fail. Never does: change logits itself (`core.sampling.stages`
and the processors of plugins do). Called by: `core.sampling.sampler`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from torch import Tensor, from_numpy

from core.sampling.failures import nothing_left, top, tops
from core.sampling.kernel import NO_TOKEN
from core.sampling.noise import Float32
from core.sampling.part import Part
from core.sampling.rows import KernelRows
from core.sampling.stages import Adjusted, CustomStage, adjust

ADJUSTED_ROWS: Final = 16
"""Rows that are adjusted at once: what they need besides the logits stays small, and in the caches."""


class AdjustedRows:
    """Draws them.

    race: the sampler's kernel.
    custom: processors of plugins; None: there are none.
    """

    def __init__(
        self, vocab_size: int, race: Callable[[Tensor, KernelRows], None], custom: CustomStage | None = None
    ) -> None:
        self._race = race
        self._custom = custom
        self._scratch: Float32 = np.empty((0, vocab_size), np.float32)

    def draw(self, part: Part, values: Float32, *, keeps: bool) -> None:
        """The tokens of a part's adjusted rows.

        values: the part's logits, float32 [R, V], not modified.
        keeps: whether somebody looks at the adjusted logits later.
        """
        for first in range(0, len(part.adjusted), ADJUSTED_ROWS):
            some = part.adjusted[first : first + ADJUSTED_ROWS]
            logits = self._copied(part, values, some)
            self._draw(part, some, logits)
            if keeps:
                kept = logits.copy()
                part.finals.update(zip(some, kept, strict=True))

    def _copied(self, part: Part, values: Float32, adjusted: Sequence[int]) -> Float32:
        """The logits of some rows, valid until the next call."""
        count = len(adjusted)
        if len(self._scratch) < count:
            self._scratch = np.empty((count, values.shape[1]), np.float32)
        logits = self._scratch[:count]
        for copy, row in zip(logits, adjusted, strict=True):
            copy[:] = values[row - part.start]
        return logits

    def _draw(self, part: Part, adjusted: Sequence[int], logits: Float32) -> None:
        """Change the logits of some rows, and draw from them."""
        rows = part.rows
        finite = np.isfinite(tops(logits))
        changes = []
        for row in adjusted:
            change = Adjusted(rows.state(row), rows.index(row), rows.drafted(row))
            changes.append(change)
        failed = adjust(logits, changes, self._custom)
        part.mask(logits, [row - part.start for row in adjusted])
        chosen = rows.chosen(np.array(adjusted), np.arange(len(adjusted)))
        self._race(from_numpy(logits), chosen)
        tokens = chosen.out.numpy()
        tokens[list(failed)] = NO_TOKEN
        # the model's own bad logits win over what the stages made of them
        tokens[~finite] = NO_TOKEN
        rows.tokens[adjusted] = tokens
        ruled_out = (tokens < 0) & finite
        for place in ruled_out.nonzero()[0].tolist():
            sentence = failed.get(place) or nothing_left(top(logits[place]))
            rows.errors.setdefault(adjusted[place], sentence)
