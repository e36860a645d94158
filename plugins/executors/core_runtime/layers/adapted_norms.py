"""What the adapters of a step change in a norm: its weight and its bias, which they replace.

Owns: the choice of the rows that such an adapter computes. Never does: read an adapter, normalize, or record: steps with such
adapters run call by call. Called by: the norms of a model with adapters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from core_runtime.layers.adapted import StepAdapters


@dataclass(frozen=True, slots=True)
class NormChange:
    """What one adapter replaces in a norm. weight, bias: float32, of the norm's shape; None: the model's own stays."""

    weight: Tensor | None = None
    bias: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return sum(part.nbytes for part in (self.weight, self.bias) if part is not None)


class NormAdapters:
    """The adapters of one norm.

    step: the adapters of the current step.
    changes: by row of the tables; only adapters that change this norm.
    """

    __slots__ = ("_changes", "_step")

    def __init__(self, step: StepAdapters, changes: Mapping[int, NormChange]) -> None:
        self._step = step
        self._changes = changes

    @property
    def active(self) -> bool:
        """Whether an adapter of the current step may change this norm."""
        return self._step.rows is not None and self._step.changes_norms and bool(self._changes)

    def chosen(self, count: int, places: Tensor | None = None) -> Iterator[tuple[NormChange, Tensor]]:
        """Yield each change with the rows of an input that it is for, int64.

        count: rows of the input, which are the first tokens of the step.
        places: int64 [count], the token of each row instead.
        """
        assert self._step.rows is not None, "a step without adapters has nothing to change"
        rows = self._step.rows[:count] if places is None else self._step.rows.index_select(0, places)
        for row, change in self._changes.items():
            found = (rows == row).nonzero().squeeze(1)
            if len(found):
                yield change, found
