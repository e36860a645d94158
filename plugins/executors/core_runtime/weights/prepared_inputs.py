"""A weight whose inputs are changed before the product, rounded or rotated, and whose outputs may be rotated behind it.

Owns: the steps that go with a weight, through cuts, moves and fusion. Never does: multiply (its kernel applies the steps, and
then the kernel of the weight inside). Called by: quantization methods (they build it), `KernelSet.linear`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from core.api.errors import UserError
from core_runtime.contracts.linear_kernels import LinearKernel
from core_runtime.weights.canonical import CanonicalWeight


class InputStep(Protocol):
    """A change of inputs x [T, K], by row. Equal steps are those of one layer, whose parts may be fused."""

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        ...

    def __call__(self, x: Tensor) -> Tensor:
        """Return x [T, K] changed, of the same shape and dtype."""
        ...

    def prepared(self, linear: Callable[[CanonicalWeight], LinearKernel]) -> Callable[[Tensor], Tensor]:
        """Return what a kernel calls: a row's bits then depend on that row alone. linear: makes the kernel of a matrix."""
        ...

    def columns(self, index: Tensor | slice, inputs: int) -> InputStep:
        """Return the step for some of the inputs. Raises ValueError where it cannot be divided there."""
        ...


@dataclass(frozen=True, slots=True)
class PreparedInputs(CanonicalWeight):
    """The matrix W of `weight`, with y = behind(steps(x) @ W.T (+ bias)), each in their order.

    weight: in any format.
    steps: what happens to inputs.
    behind: what happens to outputs.
    """

    weight: CanonicalWeight
    steps: tuple[InputStep, ...]
    behind: tuple[InputStep, ...] = ()

    @property
    def name(self) -> str:
        """The format of the weight."""
        return self.weight.name

    @property
    def shape(self) -> tuple[int, int]:
        """Logical shape (N, K)."""
        return self.weight.shape

    @property
    def nbytes(self) -> int:
        """Bytes in memory, including those of the steps."""
        return self.weight.nbytes + sum(step.nbytes for step in (*self.steps, *self.behind))

    def dequantize(self) -> Tensor:
        """Return W as float32 [N, K], without the steps."""
        return self.weight.dequantize()

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the weight, by name."""
        return self.weight.tensors()

    def attributes(self) -> dict[str, Any]:
        """Return what is equal for all rows: the weight's format and attributes, and the steps."""
        return {**self.weight.attributes(), "weight": type(self.weight), "steps": self.steps, "behind": self.behind}

    def rows(self, index: Tensor | slice) -> Self:
        """Return some rows, see `CanonicalWeight`. Raises UserError where a step behind the product needs others."""
        try:
            for step in self.behind:
                step.columns(index, self.shape[0])
        except ValueError as error:
            raise UserError(
                f"outputs that a transform mixes cannot be taken apart or reordered: {error}; quantize the model without it."
            ) from error
        return replace(self, weight=self.weight.rows(index))

    def columns(self, index: Tensor | slice) -> Self:
        """Return some columns, see `CanonicalWeight`. Raises ValueError where a step cannot be divided there."""
        steps = tuple(step.columns(index, self.shape[1]) for step in self.steps)
        return replace(self, weight=self.weight.columns(index), steps=steps)

    def to(self, device: torch.device) -> Self:
        """Return a copy on another device."""
        return replace(self, weight=self.weight.to(device))

    def joined(self, others: Sequence[Self]) -> Self:
        """Return one weight of the rows of several with equal steps."""
        return replace(self, weight=self.weight.joined([other.weight for other in others]))

    def problem(self) -> str | None:
        """Return an error message about the weight, else None."""
        return self.weight.problem()
