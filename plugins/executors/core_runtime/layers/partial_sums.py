"""Sums over the ranks that divide the inputs of a layer.

Owns: the float32 buffer of partial sums, and what is added once they are complete: the layer's bias, then the residual
stream. Never does: communicate (the decoder's `reduce` does). Called by: layers whose inputs are divided, and experts.

A sum over ranks has the bits of the whole layer: partial sums are not rounded, and each later addition happens once, in
the order of a kernel that has all inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from core_runtime.contracts import LinearKernel
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.linear import Linear
from core_runtime.layers.workspace import Workspace

BUFFER = "partial"
CHOICES = "choices"
INNER = "adapters"


class PartialSums:
    """The sums over ranks of one model.

    reduce: adds up, in place, the tensors [T, H] of all ranks.
    """

    _top_k = 0

    def __init__(
        self, workspace: Workspace, kernels: KernelSet, reduce: Callable[[Tensor], None], max_tokens: int, width: int
    ) -> None:
        workspace.reserve(BUFFER, max_tokens, width, torch.float32)
        self._workspace = workspace
        self._kernels = kernels
        self.reduce = reduce
        self._max_tokens, self._width = max_tokens, width
        self._inner = 0

    def reserve_choices(self, top_k: int) -> None:
        """Reserve the buffer of `choices` for layers with up to `top_k` choices a token; only while a model is built."""
        self._top_k = max(self._top_k, top_k)
        self._workspace.reserve(CHOICES, self._max_tokens, self._top_k * self._width, torch.float32)

    def choices(self, rows: int, top_k: int) -> Tensor:
        """Return float32 [T, k * H] for the outputs of a token's experts."""
        size = top_k * self._width
        return self._workspace.buffer(CHOICES).flatten()[: rows * size].view(rows, size)

    def reserve_inner(self, width: int) -> None:
        """Reserve the buffer of `inner` for layers with up to `width` numbers a token; only before the first step."""
        if width <= self._inner:
            return
        self._inner = width
        self._workspace.reserve(INNER, self._max_tokens, width, torch.float32)
        self._zeros = torch.zeros(1, width, device=self._workspace.device)
        self._first = torch.zeros(self._max_tokens, dtype=torch.int64, device=self._workspace.device)

    def inner(self, rows: int, width: int) -> Tensor:
        """Return zeros, float32 [T, width], for the partial sums of adapters. They are copied, since that can be recorded."""
        found = self._workspace.view(INNER, rows, width)
        self._kernels.take_rows(self._zeros[:, :width], self._first[:rows], found)
        return found

    def room(self, out: Tensor, *, accumulate: bool) -> Tensor:
        """Return float32 [T, H] for the partial sums of `out`: `out` itself where nothing in it must be kept."""
        if out.dtype is torch.float32 and not accumulate and out.is_contiguous():
            return out
        return self._workspace.view(BUFFER, out.shape[0])

    def finish(self, partial: Tensor, bias: Tensor | None, out: Tensor, *, accumulate: bool) -> None:
        """Write the sum over ranks of `partial`, which `room` has returned, to out [T, H], or add it.

        bias: float32 [H], added to the sum first, or None.
        """
        self.reduce(partial)
        if bias is not None:
            rows, width = partial.shape
            # Rows at a distance of 0, even where there is one: a call recorded for one row is replayed for more.
            self._kernels.add(bias.as_strided((rows, width), (0, 1)), partial)
        if accumulate:
            self._kernels.add(partial, out)
        elif partial is not out:
            out.copy_(partial)


class SummedLinear(Linear):
    """A linear layer whose inputs are divided among ranks. `attach` must be called before the first step.

    bias: float32 [N] of the whole layer, or None; the kernels have none.
    whole_inputs: inputs of the whole layer, K of all ranks together.

    sums: the sums of its model; None before `attach`.
    """

    def __init__(self, kernels: Sequence[LinearKernel], bias: Tensor | None, whole_inputs: int) -> None:
        super().__init__(kernels)
        self.bias = bias
        self.whole_inputs = whole_inputs
        self.sums: PartialSums | None = None

    def attach(self, sums: PartialSums) -> None:
        """Bind the layer to the sums of its model."""
        self.sums = sums

    def without_adapters(self, x: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """Compute out[T, N] = the sum over ranks of x[T, K] @ W.T (+ bias), or += with `accumulate`."""
        assert self.sums is not None, "only a decoder with a `reduce` runs a part of a model"
        partial = self.sums.room(out, accumulate=accumulate)
        super().without_adapters(x, partial)
        self.sums.finish(partial, self.bias, out, accumulate=accumulate)
