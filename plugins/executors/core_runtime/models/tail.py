"""The step of a model's last blocks, where these compute fewer rows than the blocks before them.

Owns: `TailStep`, and moving rows to the beginning of buffers. Never does: choose the rows (the model runner does), or compute.
Called by: the decoder, between two blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from core_runtime.models.step_views import StepViews


class HoldsRows(Protocol):
    """A component of a decoder with buffers of its own."""

    def move(self, num_tokens: int, rows: Tensor) -> None:
        """Move rows, int64 [K], among those of `num_tokens` tokens, to the beginning of its buffers."""


@dataclass(frozen=True, slots=True)
class TailStep:
    """The rows of a step that the blocks from `first` on compute.

    first: index of a block in this part of the model.
    rows: int64 [K], ascending, numbers among the rows of the step.
    positions: int64 [K], of these rows.
    metadata: attention metadata for these rows, of the mixers of the blocks from `first` on.
    begin: is called before these blocks run, and sets what depends on rows.
    """

    first: int
    rows: Tensor
    positions: Tensor
    metadata: Sequence[Any]
    begin: Callable[[], None]

    def take(self, views: StepViews, components: Sequence[HoldsRows | None]) -> None:
        """Move the rows to the beginning of all buffers that these blocks read, and set what depends on rows."""
        # The norm of the first block's input may have been computed with the end of the block before it.
        for buffer in (views.residual, views.normed):
            move_rows(buffer, self.rows)
        for component in components:
            if component is not None:
                component.move(len(views.residual), self.rows)
        self.begin()


def move_rows(buffer: Tensor, rows: Tensor) -> None:
    """Move `rows`, int64 [K] and ascending, of a buffer [T, ...] to its first K rows."""
    # Copied aside first: a row may lie where an earlier one goes to.
    buffer[: len(rows)].copy_(buffer.index_select(0, rows))
