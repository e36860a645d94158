"""Reference kernels that compute one row at a time, so that the bits of a row depend on nothing but the row.

Owns: the meaning of `--numerics reference` for operations in plain torch. Never does: be fast.
Called by: the worker, which puts them after all other providers.

A library may sum in another order, or take another path at a vector's tail, when a matrix has more rows or begins at
another address. Here each product and each function sees one row of the same shape, at an aligned address.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from core.api.specs import Activation
from core_runtime.contracts import HeadsKernel
from core_runtime.layers.heads import LinearHeads
from core_runtime.layers.reference import FEATURES, ReferenceKernels, ReferenceLinear
from core_runtime.specs.routing_spec import RoutingSpec
from core_runtime.weights.canonical import moved_into
from core_runtime.weights.formats import CanonicalWeight, Dense, HasGroups
from core_runtime.weights.int_groups import FEATURES as WEIGHT_FEATURES

OUTPUT_BLOCK = 16
"""Multiple of a product's outputs."""
VECTORS = 64
"""Multiple of the numbers that a function sees at once: whole vectors of any processor."""


class RowLinear(ReferenceLinear):
    """A linear kernel that multiplies one row at a time, in float32; inputs are rounded as in the reference.

    segments: maximum of equal parts of the inputs with sums of their own, see `SumsInSegments`.
    """

    def __init__(self, weight: CanonicalWeight, activation: Activation, bias: Tensor | None, segments: int = 1) -> None:
        super().__init__(weight, activation, bias)
        self.segments = _segments_of(weight, segments)

    def _product(self, x: Tensor, part: Tensor) -> Tensor:
        num_outputs = part.shape[0]
        # A library computes the last outputs another way where their number is not a multiple of its block's.
        wide = F.pad(part.float(), (0, 0, 0, -num_outputs % OUTPUT_BLOCK))
        weights = [_aligned(segment) for segment in wide.chunk(self.segments, 1)]
        out = wide.new_empty(x.shape[0], num_outputs)
        for index, row in enumerate(x.split(1)):
            inputs = row.float().chunk(self.segments, 1)
            sums = [F.linear(_aligned(some), weight)[0] for some, weight in zip(inputs, weights, strict=True)]
            while len(sums) > 1:
                sums = [first + second for first, second in zip(sums[::2], sums[1::2], strict=True)]
            out[index] = sums[0][:num_outputs]
        return out


class RowKernels(ReferenceKernels):
    """Reference kernels that run row by row wherever bits could depend on other rows; the others are exact anyway."""

    name = "reference_rows"
    features = FEATURES | WEIGHT_FEATURES
    max_segments = 8
    numerics = f"torch-rows-{torch.__version__.split('+')[0]}-tree{max_segments}"

    def linear(
        self,
        weight: CanonicalWeight,
        *,
        activation: Activation,
        bias: Tensor | None = None,
        into: Tensor | None = None,
        segments: int = 1,
    ) -> RowLinear:
        """Keep the weight as it is. into: memory for a copy of it."""
        held = weight if into is None else moved_into(weight, into)
        return RowLinear(held, activation, bias, segments)

    def heads(self, weight: Tensor, activation: Activation) -> HeadsKernel:
        """Make a linear kernel per head, which multiplies row by row."""
        kernels = [self.linear(Dense(one), activation=activation) for one in weight]
        return LinearHeads(kernels)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """Normalize row by row; x and out [T, H] or [T, heads, D]."""
        inputs = x.split(1)
        outputs = out.split(1)
        for row, into in zip(inputs, outputs, strict=True):
            super().rms_norm(_aligned(row), weight, eps, into)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor) -> None:
        """Normalize row by row; x and out [T, H] or [T, heads, D]."""
        inputs = x.split(1)
        outputs = out.split(1)
        for row, into in zip(inputs, outputs, strict=True):
            super().layer_norm(_aligned(row), weight, bias, eps, into)

    def activate(self, x: Tensor, activation: str, out: Tensor) -> None:
        """Apply the activation row by row."""
        inputs = x.split(1)
        outputs = out.split(1)
        width = out.shape[1]
        for row, into in zip(inputs, outputs, strict=True):
            whole = _whole_vectors(row)
            super().activate(whole, activation, whole)
            into.copy_(whole[:, :width])

    def gated(self, x: Tensor, activation: str, out: Tensor) -> None:
        """Apply the gated activation row by row."""
        inputs = x.split(1)
        outputs = out.split(1)
        width = out.shape[1]
        for row, into in zip(inputs, outputs, strict=True):
            both = _whole_vectors(row.reshape(2, width))
            whole = torch.empty_like(both[:1])
            super().gated(both.view(1, -1), activation, whole)
            into.copy_(whole[:, :width])

    def soft_cap(self, x: Tensor, cap: float) -> None:
        """Apply the soft cap row by row."""
        width = x.shape[1]
        for row in x.split(1):
            whole = _whole_vectors(row)
            super().soft_cap(whole, cap)
            row.copy_(whole[:, :width])

    def open_gate(self, gate: Tensor, x: Tensor) -> None:
        """Open the gate row by row."""
        width = gate.shape[1]
        neighbours = x.unflatten(1, (width, -1))
        for row, into in zip(gate.split(1), neighbours.split(1), strict=True):
            opened = _whole_vectors(row.float()).sigmoid()[:, :width]
            into.mul_(opened.to(x.dtype).unsqueeze(2))

    def route(self, logits: Tensor, routing: RoutingSpec, bias: Tensor | None, ids: Tensor, weights: Tensor) -> None:
        """Choose experts row by row."""
        rows = logits.split(1)
        all_ids = ids.split(1)
        all_weights = weights.split(1)
        for row, row_ids, row_weights in zip(rows, all_ids, all_weights, strict=True):
            super().route(_aligned(row), routing, bias, row_ids, row_weights)


def _segments_of(weight: CanonicalWeight, most: int) -> int:
    """Return the largest power of two up to `most` that divides the inputs into equal parts of whole groups, or pairs."""
    unit = weight.group_size if isinstance(weight, HasGroups) else 2
    segments = 1
    while 2 * segments <= most and weight.shape[1] % (2 * segments * unit) == 0:
        segments *= 2
    return segments


def _aligned(row: Tensor) -> Tensor:
    """Copy a matrix to an address that the allocator aligns."""
    return row.clone(memory_format=torch.contiguous_format)


def _whole_vectors(rows: Tensor) -> Tensor:
    """Copy rows [n, W] with zeros behind them: a library computes the last numbers another way than whole vectors."""
    return _aligned(F.pad(rows, (0, -rows.shape[1] % VECTORS)))
