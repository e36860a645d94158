"""Consecutive rows of a step that are sampled in one call, and the special ones among them.

Owns: `Part`, and which rows are drawn in which way. Never does: draw. Called by: `core_runtime.sampling.sampler`.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from core_runtime.sampling.bitmask import apply_bitmask
from core_runtime.sampling.changes.host_logits import HostLogits
from core_runtime.sampling.masks import RowMasks
from core_runtime.sampling.noise import Float32
from core_runtime.sampling.rows import SampleRows


@dataclass(slots=True)
class Part:
    """The rows of one call of the sampler.

    rows: rows of the step.
    start: first row of the part.
    stop: end of the part, exclusive.
    adjusted: rows whose logits are changed before the race.
    lazy: rows with a mask that are first drawn without it.
    masks: masks of the other rows that have one; None: all tokens are allowed.
    finals: float32 [V] by row, the final logits of adjusted rows, if they are read again.
    """

    rows: SampleRows
    start: int
    stop: int
    adjusted: list[int] = field(default_factory=list)
    lazy: list[int] = field(default_factory=list)
    masks: RowMasks | None = None
    finals: dict[int, Float32] = field(default_factory=dict)

    def final_logits(self, values: HostLogits, row: int) -> Float32:
        """Return a row's final logits, float32 [V], after its stages and its mask. values: the part's logits."""
        found = self.finals.get(row)
        if found is not None:
            return found
        place = row - self.start
        # Copied, because the mask is applied in place.
        logits = values[place][None].copy()
        self.mask(logits, [place])
        final: Float32 = logits[0]
        return final

    def mask(self, logits: Float32, places: Sequence[int]) -> None:
        """Apply the masks of some rows. places: place in the part of each row of logits."""
        if self.masks is None:
            return
        for row, place in enumerate(places):
            words = self.masks.words_of(place)
            if words is not None:
                apply_bitmask(logits[row : row + 1], words[None])


def by_mask(
    rows: SampleRows, start: int, stop: int, adjusted: Sequence[int], shown: Container[int]
) -> tuple[list[int], list[int]]:
    """Split rows with a mask into those that can be drawn without it, to see whether it matters, and the others.

    shown: rows whose masked logits are reported.
    If the largest of all logits belongs to an allowed token, it is the largest of the allowed ones too. A race with noise or
    filters changes when tokens are removed from it.
    """
    lazy: list[int] = []
    eager: list[int] = []
    for row in between(rows.masked, start, stop):
        is_lazy = rows.temperatures[row] == 0 and row not in adjusted and row not in shown
        where = lazy if is_lazy else eager
        where.append(row)
    return lazy, eager


def between(rows: list[int], start: int, stop: int) -> list[int]:
    """Return those of some rows that lie in a part."""
    return [row for row in rows if start <= row < stop]
