"""Sampling of rows whose logits are changed first, from copies of them.

Owns: the copies, on the host or on the device of the logits, and the errors of rows whose changes fail.
Never does: change logits itself (`core_runtime.sampling.changes.stages` and the processors of plugins do). Called by:
`core_runtime.sampling.sampler`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor, from_numpy

from core_runtime.sampling.changes.host_logits import HostLogits
from core_runtime.sampling.changes.stages import Adjusted, CustomStage, adjust, adjust_there
from core_runtime.sampling.failures import nothing_left, top, tops
from core_runtime.sampling.kernel import NO_TOKEN
from core_runtime.sampling.noise import Float32
from core_runtime.sampling.part import Part
from core_runtime.sampling.rows import KernelRows

ADJUSTED_ROWS: Final = 16
"""Rows adjusted at once on the host: the copies stay small enough for the caches."""

DEVICE_ROWS: Final = 64
"""Rows adjusted at once on a device, whose memory holds the copies."""


class AdjustedRows:
    """Draws tokens of adjusted rows. The sampler owns it.

    race: the sampler's kernel.
    custom: logits processors of plugins; None: there are none.
    """

    def __init__(
        self, vocab_size: int, race: Callable[[Tensor, KernelRows], None], custom: CustomStage | None = None
    ) -> None:
        self._race = race
        self._custom = custom
        self._scratch: Float32 = np.empty((0, vocab_size), np.float32)

    def draw(self, part: Part, values: HostLogits, *, keeps: bool) -> None:
        """Draw the tokens of a part's adjusted rows.

        values: the part's logits.
        keeps: whether to store the adjusted logits in the part, because a rule or a report reads them.
        """
        here = part.adjusted
        if part.rows.on_device is not None and not keeps and values.tensor.dtype is torch.float32:
            there = [row for row in part.adjusted if _stays(part, row)]
            here = sorted(set(part.adjusted).difference(there))
            for first in range(0, len(there), DEVICE_ROWS):
                self._draw_there(part, there[first : first + DEVICE_ROWS], values.tensor)
        # One copy for all rows that the host adjusts.
        values.bring([row - part.start for row in here])
        for first in range(0, len(here), ADJUSTED_ROWS):
            some = here[first : first + ADJUSTED_ROWS]
            logits = self._copied(part, values, some)
            self._draw(part, some, logits)
            if keeps:
                kept = logits.copy()
                part.finals.update(zip(some, kept, strict=True))

    def _copied(self, part: Part, values: HostLogits, adjusted: Sequence[int]) -> Float32:
        """Return a copy of the logits of some rows, valid until the next call."""
        count = len(adjusted)
        if len(self._scratch) < count:
            self._scratch = np.empty((count, self._scratch.shape[1]), np.float32)
        logits = self._scratch[:count]
        for copy, row in zip(logits, adjusted, strict=True):
            copy[:] = values[row - part.start]
        return logits

    def _draw_there(self, part: Part, adjusted: Sequence[int], whole: Tensor) -> None:
        """Change copies of some rows on their device, and draw there. whole: the part's logits."""
        rows = part.rows
        places = torch.tensor([row - part.start for row in adjusted], device=whole.device)
        logits = whole.index_select(0, places)
        # Before the stages: later, -inf from a mask could not be distinguished from bad logits.
        finite = torch.isfinite(logits.amax(1)).cpu().numpy()
        adjust_there(logits, [_change(part, row) for row in adjusted])
        chosen = rows.chosen(np.array(adjusted), np.arange(len(adjusted)))
        self._race(logits, chosen)
        tokens = chosen.out.numpy()
        tokens[~finite] = NO_TOKEN
        rows.tokens[adjusted] = tokens
        ruled_out = (tokens < 0) & finite
        for place in ruled_out.nonzero()[0].tolist():
            largest = float(logits[place].amax())
            rows.errors.setdefault(adjusted[place], nothing_left(largest))

    def _draw(self, part: Part, adjusted: Sequence[int], logits: Float32) -> None:
        """Change the logits of some rows, and draw their tokens."""
        rows = part.rows
        finite = np.isfinite(tops(logits))
        failed = adjust(logits, [_change(part, row) for row in adjusted], self._custom)
        part.mask(logits, [row - part.start for row in adjusted])
        chosen = rows.chosen(np.array(adjusted), np.arange(len(adjusted)))
        self._race(from_numpy(logits), chosen)
        tokens = chosen.out.numpy()
        tokens[list(failed)] = NO_TOKEN
        # bad logits of the model are reported in preference to the result of the stages
        tokens[~finite] = NO_TOKEN
        rows.tokens[adjusted] = tokens
        ruled_out = (tokens < 0) & finite
        for place in ruled_out.nonzero()[0].tolist():
            sentence = failed.get(place) or nothing_left(top(logits[place]))
            rows.errors.setdefault(adjusted[place], sentence)


def _change(part: Part, row: int) -> Adjusted:
    rows = part.rows
    return Adjusted(rows.state(row), rows.index(row), rows.drafted(row))


def _stays(part: Part, row: int) -> bool:
    """Whether a row can be changed on its device: it has no logits processor, no replay and no mask."""
    state = part.rows.state(row)
    if state.processors or state.late_processors or state.trace is not None:
        return False
    return part.masks is None or part.masks.words_of(row - part.start) is None
