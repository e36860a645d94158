"""The kernel of a weight whose inputs are changed before the product, or whose outputs behind it.

Owns: the order of steps and product. Never does: arithmetic. Called by: `KernelSet.linear`, for `PreparedInputs`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from core_runtime.contracts import HasInputRounding, LinearKernel
from core_runtime.weights.canonical import CanonicalWeight
from core_runtime.weights.input_rounding import InputRounding
from core_runtime.weights.prepared_inputs import PreparedInputs


def prepared_linear(
    product: LinearKernel, weight: PreparedInputs, linear: Callable[[CanonicalWeight], LinearKernel]
) -> LinearKernel:
    """Return the kernel of a weight with its steps. The product rounds its inputs itself where it can, and is then all there
    is unless the weight has other steps too.

    product: kernel of the weight inside.
    linear: see `PreparedLinear`.
    """
    if weight.steps and isinstance(product, HasInputRounding):
        last = weight.steps[-1]
        if isinstance(last, InputRounding) and product.round_inputs(last):
            weight = replace(weight, steps=weight.steps[:-1])
    return PreparedLinear(product, weight, linear) if weight.steps or weight.behind else product


class PreparedLinear:
    """A linear kernel among some steps; implements `LinearKernel`. It is not recorded: steps allocate.

    product: kernel of the weight.
    weight: the weight with its steps.
    linear: makes the kernels of matrices that steps multiply with.
    """

    def __init__(
        self, product: LinearKernel, weight: PreparedInputs, linear: Callable[[CanonicalWeight], LinearKernel]
    ) -> None:
        self.product = product
        self._before = [step.prepared(linear) for step in weight.steps]
        self._behind = [step.prepared(linear) for step in weight.behind]
        self.shape = product.shape
        self.nbytes = product.nbytes + sum(step.nbytes for step in (*weight.steps, *weight.behind))

    def __call__(self, x: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """Compute out[T, N] = behind(steps(x) @ W.T (+ bias)), or += with `accumulate`; a row's bits depend on it alone."""
        for step in self._before:
            x = step(x)
        if not self._behind:
            self.product(x, out, accumulate=accumulate)
            return
        y = torch.empty(out.shape, dtype=out.dtype, device=out.device)
        self.product(x, y)
        for step in self._behind:
            y = step(y)
        if accumulate:
            out += y
        else:
            out.copy_(y)

    def rows(self, ids: Tensor, out: Tensor) -> None:
        """Compute out[T, K] = W[ids]; the inputs of an embedding are ids, which no step changes."""
        self.product.rows(ids, out)
