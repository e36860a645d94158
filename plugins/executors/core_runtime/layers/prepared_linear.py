"""The kernel of a weight whose inputs are changed before the product.

Owns: the order of steps and product. Never does: arithmetic. Called by: `KernelSet.linear`, for `PreparedInputs`.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from core_runtime.contracts import LinearKernel
from core_runtime.weights.prepared_inputs import InputStep


class PreparedLinear:
    """A linear kernel behind some steps; implements `LinearKernel`. It is not recorded: steps allocate.

    product: kernel of the weight.
    steps: what happens to the inputs first.
    """

    def __init__(self, product: LinearKernel, steps: Sequence[InputStep]) -> None:
        self.product = product
        self.steps = tuple(steps)
        self.shape = product.shape
        self.nbytes = product.nbytes + sum(step.nbytes for step in steps)

    def __call__(self, x: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """Compute out[T, N] = step(x) @ W.T (+ bias), or += with `accumulate`; a row's bits depend on that row alone."""
        for step in self.steps:
            x = step(x)
        self.product(x, out, accumulate=accumulate)

    def rows(self, ids: Tensor, out: Tensor) -> None:
        """Compute out[T, K] = W[ids]; the inputs of an embedding are ids, which no step changes."""
        self.product.rows(ids, out)
