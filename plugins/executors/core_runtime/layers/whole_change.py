"""Tensors that an adapter has in place of the model's, where nothing can be added to a product.

Owns: the choice of the rows that such an adapter computes. Never does: read an adapter, compute, or record: steps with such
adapters run call by call. Called by: layers with a state and several streams, in a model with adapters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from core_runtime.layers.adapted import StepAdapters


@dataclass(slots=True)
class WholeChange:
    """What one adapter has in place of a block's tensors.

    params: float32, the tensors that differ from the model's, by their names in the block.
    handle: the backend's handle of a layer with a state that has these tensors; None until the first step that needs it.
    bound: what the handle was made for.
    """

    params: Mapping[str, Tensor]
    handle: Any = None
    bound: object = None

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(tensor.nbytes for tensor in self.params.values())


class WholeAdapters:
    """The adapters of one block.

    step: the adapters of the current step.
    changes: by row of the tables; only adapters that change this block.
    """

    __slots__ = ("_changes", "_step")

    def __init__(self, step: StepAdapters, changes: Mapping[int, WholeChange]) -> None:
        self._step = step
        self._changes = changes

    @property
    def active(self) -> bool:
        """Whether an adapter of the current step may change this block."""
        return self._step.rows is not None and self._step.changes_whole and bool(self._changes)

    def chosen(self, name: str, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each adapter's tensor of a name with the rows that it is for, int64. count: the step's first rows."""
        assert self._step.rows is not None, "a step without adapters has nothing to change"
        rows = self._step.rows[:count]
        for row, change in self._changes.items():
            found = (rows == row).nonzero().squeeze(1)
            if name in change.params and len(found):
                yield change.params[name], found
