"""Neighbouring rows of a step, and what is special about some of them.

Owns: `Part`, and which rows are drawn in which way. Never does: draw. Called by: `core_runtime.sampling.sampler`.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from core_runtime.sampling.bitmask import apply_bitmask
from core_runtime.sampling.host_logits import HostLogits
from core_runtime.sampling.masks import RowMasks
from core_runtime.sampling.noise import Float32
from core_runtime.sampling.rows import SampleRows


@dataclass(slots=True)
class Part:
    """The rows of one call of the sampler.

    rows: of the step.
    start: the first of them.
    stop: behind the last one.
    adjusted: those whose logits are changed before they compete.
    lazy: those with a mask that are drawn without it first.
    masks: of the others with a mask; None: every token may come.
    finals: float32 [V] by row, the logits of adjusted rows as they competed; of those that are looked at again.
    """

    rows: SampleRows
    start: int
    stop: int
    adjusted: list[int] = field(default_factory=list)
    lazy: list[int] = field(default_factory=list)
    masks: RowMasks | None = None
    finals: dict[int, Float32] = field(default_factory=dict)

    def final_logits(self, values: HostLogits, row: int) -> Float32:
        """A row's logits as they compete, float32 [V]: behind its stages and its mask. values: the part's logits."""
        found = self.finals.get(row)
        if found is not None:
            return found
        place = row - self.start
        logits = values[place][None].copy()
        self.mask(logits, [place])
        final: Float32 = logits[0]
        return final

    def mask(self, logits: Float32, places: Sequence[int]) -> None:
        """Apply the masks of some rows. places: of each row of logits, counted from the first of the part."""
        if self.masks is None:
            return
        for row, place in enumerate(places):
            words = self.masks.words_of(place)
            if words is not None:
                apply_bitmask(logits[row : row + 1], words[None])


def by_mask(
    rows: SampleRows, start: int, stop: int, adjusted: Sequence[int], shown: Container[int]
) -> tuple[list[int], list[int]]:
    """Rows with a mask: those that can be drawn without it, to see whether it matters, and the others.

    shown: rows whose masked logits somebody wants to see.
    The largest of all logits, when its token may come, is the largest of those that may. A race with noise or filters is
    another one when tokens are taken out of it.
    """
    lazy: list[int] = []
    eager: list[int] = []
    for row in between(rows.masked, start, stop):
        is_lazy = rows.temperatures[row] == 0 and row not in adjusted and row not in shown
        where = lazy if is_lazy else eager
        where.append(row)
    return lazy, eager


def between(rows: list[int], start: int, stop: int) -> list[int]:
    """Those of some rows that lie in a part."""
    return [row for row in rows if start <= row < stop]
