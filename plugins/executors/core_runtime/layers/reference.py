"""Reference kernels in plain torch: every operation, every canonical format, every device.

Owns: the meaning of each operation; native kernels are tested against these. Never does: keep a dense copy of a packed
weight (it dequantizes a slice of rows at a time). Called by: `KernelSet`, when no plugin's kernel supports an operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from core.api.reason import Reason
from core.api.specs import Activation, KernelQuery
from core_runtime.contracts import GatedOperation, HeadsKernel, LowRankForm
from core_runtime.layers import activations
from core_runtime.layers.experts import COMBINE_RANGES, ReferenceExperts, route
from core_runtime.layers.heads import BatchedHeads
from core_runtime.layers.linear import Linear
from core_runtime.layers.low_rank import ReferenceLowRank
from core_runtime.specs.routing_spec import RoutingSpec
from core_runtime.weights.canonical import INPUT_GROUP, memory_of, moved_into
from core_runtime.weights.experts import Experts
from core_runtime.weights.formats import CanonicalWeight, Dense, HasGroups, IntGroups, SuperGroups
from core_runtime.weights.int_groups import FEATURES as WEIGHT_FEATURES

ROWS_AT_ONCE = 1024
LARGEST_E4M3 = 448.0
FEATURES = frozenset({*activations.NUMBERS, "partial_rotary", "norms_by_head", "sparse_mixer", "routing_epsilon"})
"""All features beyond the operations of every provider; see `HasFeatures`."""


def quantized_activations(x: Tensor, group_size: int) -> Tensor:
    """Return x [T, K] rounded to signed 8-bit integers per row and group (scale amax / 127), as float32 again.

    group_size: inputs per group; the last group of a row may be smaller.
    """
    num_rows, num_inputs = x.shape
    missing = -num_inputs % group_size
    padded = F.pad(x.float(), (0, missing))
    groups = padded.view(num_rows, -1, group_size)
    scale = groups.abs().amax(-1, keepdim=True) / 127.0
    # A group of zeros has scale 0; its inverse must not be infinite.
    inverse = torch.where(scale > 0, 1.0 / scale, torch.zeros_like(scale))
    steps = torch.round(groups * inverse).clamp(-127, 127)
    rounded = (steps * scale).view(num_rows, -1)
    return rounded[:, :num_inputs]


def floats8_activations(x: Tensor) -> Tensor:
    """Return x [T, K] rounded to e4m3 with a scale per row (amax / 448), as float32 again."""
    wide = x.float()
    scale = wide.abs().amax(-1, keepdim=True) / LARGEST_E4M3
    inverse = torch.where(scale > 0, 1.0 / scale, torch.zeros_like(scale))
    codes = (wide * inverse).clamp(-LARGEST_E4M3, LARGEST_E4M3).to(torch.float8_e4m3fn)
    return codes.float() * scale


def activations_by_group(x: Tensor, group_size: int) -> Tensor:
    """Return x with activations quantized in groups of INPUT_GROUP, or of `group_size` if that is smaller.

    group_size: inputs that share a scale of the weight. A larger one is divided into groups from its start.
    """
    if group_size <= INPUT_GROUP:
        return quantized_activations(x, group_size)
    by_group = x.reshape(-1, group_size)
    return quantized_activations(by_group, INPUT_GROUP).reshape(x.shape)


def inputs_by_group(x: Tensor, weight: CanonicalWeight) -> Tensor:
    """Return x [T, K] as activation `int8` rounds it for a weight: in the weight's groups and its stored order."""
    group_size = weight.group_size if isinstance(weight, HasGroups) else weight.shape[1]
    if not isinstance(weight, IntGroups | SuperGroups) or weight.order is None:
        return activations_by_group(x, group_size)
    stored = x[:, weight.order.tensor().to(x.device)]
    return weight.order.restored(activations_by_group(stored, group_size))


class ReferenceLinear:
    """A linear kernel on a weight in its canonical form."""

    def __init__(self, weight: CanonicalWeight, activation: Activation, bias: Tensor | None) -> None:
        self.weight = weight
        self.activation = activation
        self.bias = bias
        self.shape = weight.shape
        self.nbytes = weight.nbytes

    def __call__(self, x: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """Compute out[T, N] = x[T, K] @ W.T (+ bias), or += with `accumulate`."""
        x = self._rounded(x)
        for start in range(0, self.shape[0], ROWS_AT_ONCE):
            stop = min(start + ROWS_AT_ONCE, self.shape[0])
            part = self._rows(start, stop, x.dtype)
            product = self._product(x, part).to(out.dtype)
            if self.bias is not None:
                product += self.bias[start:stop]
            if accumulate:
                out[:, start:stop] += product
            else:
                out[:, start:stop] = product

    def weights(self) -> list[Tensor]:
        """Return the tensors of the weight: the `MovesWeights` contract."""
        return list(self.weight.tensors().values())

    def use_weights(self, tensors: Sequence[Tensor]) -> None:
        """Read other tensors: the `MovesWeights` contract."""
        self.weight = replace(self.weight, **dict(zip(self.weight.tensors(), tensors, strict=True)))

    def _rounded(self, x: Tensor) -> Tensor:
        """Return x [T, K] in the precision of the activations."""
        if self.activation == "bf16":
            return x.bfloat16()
        if self.activation == "int8_row":
            return quantized_activations(x, x.shape[1])
        if self.activation == "fp8_row":
            return floats8_activations(x)
        if self.activation == "int8" and not isinstance(self.weight, Dense):
            return inputs_by_group(x, self.weight)
        return x

    def _product(self, x: Tensor, part: Tensor) -> Tensor:
        """Return [T, n], the product of x [T, K] and some rows of the weight [n, K]."""
        return F.linear(x, part)

    def rows(self, ids: Tensor, out: Tensor) -> None:
        """Compute out[T, K] = W[ids]."""
        out.copy_(self.weight.rows(ids).dequantize())

    def _rows(self, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        part = self.weight.rows(slice(start, stop))
        values = part.weight if isinstance(part, Dense) else part.dequantize()
        return values.to(dtype)


class ReferenceKernels:
    """All operations in torch, in float32 unless the tensors are narrower."""

    name = "reference"
    numerics = f"torch-{torch.__version__.split('+')[0]}"
    features = FEATURES | WEIGHT_FEATURES

    def __init_subclass__(cls) -> None:
        """Reset `features` for a subclass: it must declare what its own operations can do."""
        if "features" not in cls.__dict__:
            cls.features = frozenset()

    def supports(self, query: KernelQuery) -> list[Reason]:
        """Return no reasons: everything is supported."""
        return []

    def linear(
        self, weight: CanonicalWeight, *, activation: Activation, bias: Tensor | None = None, into: Tensor | None = None
    ) -> ReferenceLinear:
        """Keep the weight as it is. into: memory for a copy of it."""
        held = weight if into is None else moved_into(weight, into)
        return ReferenceLinear(held, activation, bias)

    def prepared_nbytes(self, weight: CanonicalWeight, *, activation: Activation) -> int:
        """Return the bytes of the weight's tensors."""
        return memory_of(weight)

    def grouped_experts(
        self,
        gate_up: Experts,
        down: Experts,
        activation: str,
        *,
        precision: Activation,
        gated: GatedOperation,
        max_ranges: int = COMBINE_RANGES,
    ) -> ReferenceExperts:
        """Make the experts of a layer, each a view of the whole weight."""
        first = self._each(gate_up, precision)
        second = self._each(down, precision)
        return ReferenceExperts(first, second, activation, gated, max_ranges=max_ranges)

    def _each(self, experts: Experts, precision: Activation) -> list[Linear]:
        """Make a linear layer for each expert."""
        layers = []
        for index in range(experts.count):
            kernel = self.linear(experts.expert(index), activation=precision)
            layers.append(Linear([kernel]))
        return layers

    def heads(self, weight: Tensor, activation: Activation) -> HeadsKernel:
        """Make a kernel with one matrix per head, [H, N, K]."""
        return BatchedHeads(weight, activation == "bf16")

    def low_rank(self, form: LowRankForm) -> ReferenceLowRank:
        """Make the empty table of the adapters of one layer."""
        return ReferenceLowRank(form)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """Compute out[T, H] = x / sqrt(mean(x²) + eps) * weight (Zhang and Sennrich 2019, arXiv 1910.07467)."""
        wide = x.float()
        mean_square = wide.square().mean(-1, keepdim=True)
        normed = wide * torch.rsqrt(mean_square + eps)
        out.copy_(normed * weight)

    def rms_norm_heads(self, x: Tensor, weight: Tensor, eps: float) -> None:
        """Normalize in place over the last axis of x [T, H, D], weight [D] or [H, D]."""
        self.rms_norm(x, weight, eps, x)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor) -> None:
        """Compute out[T, H] = (x - mean) / sqrt(variance + eps) * weight (+ bias) (Ba et al. 2016, arXiv 1607.06450)."""
        wide = x.float()
        centred = wide - wide.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        normed = centred * torch.rsqrt(variance + eps) * weight
        out.copy_(normed if bias is None else normed + bias)

    def layer_norm_heads(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> None:
        """Normalize in place over the last axis of x [T, H, D], weight and bias [D] or [H, D]."""
        self.layer_norm(x, weight, bias, eps, x)

    def rotary(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> None:
        """Rotate the pairs (i, i + R/2) of the first R = 2 * cos.shape[1] of q [T, Hq, D] and k [T, Hkv, D] in place."""
        c = cos[positions].unsqueeze(1)
        s = sin[positions].unsqueeze(1)
        half = cos.shape[1]
        for x in (q, k):
            first = x[..., :half].float()
            second = x[..., half : 2 * half].float()
            # Both before either is stored: in float32, `first` and `second` are views of x.
            turned_first = first * c - second * s
            turned_second = second * c + first * s
            x[..., :half] = turned_first
            x[..., half : 2 * half] = turned_second

    def gated(self, x: Tensor, activation: str, out: Tensor) -> None:
        """Compute out[T, I] = act(x[:, :I]) * x[:, I:]."""
        opened = activations.gated(x, activation)
        out.copy_(opened)

    def activate(self, x: Tensor, activation: str, out: Tensor) -> None:
        """Compute out[T, I] = act(x)."""
        active = activations.activate(x, activation)
        out.copy_(active)

    def add(self, x: Tensor, residual: Tensor) -> None:
        """Add x to the residual, in place."""
        residual += x

    def add_rms_norm(
        self, x: Tensor, before: Tensor | None, residual: Tensor, behind: Tensor, eps: float, out: Tensor
    ) -> None:
        """Add x to the residual, normed with `before` unless that is None; out = the norm of the residual with `behind`."""
        if before is not None:
            self.rms_norm(x, before, eps, x)
        self.add(x, residual)
        self.rms_norm(residual, behind, eps, out)

    def take_rms_norm(self, x: Tensor, rows: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """Compute out[R, H] = the norm of x[rows]."""
        self.take_rows(x, rows, out)
        self.rms_norm(out, weight, eps, out)

    def open_gate(self, gate: Tensor, x: Tensor) -> None:
        """Multiply x[T, W] by sigmoid(gate[T, G]) in place: each number of the gate applies to W / G neighbours of x."""
        opened = gate.float().sigmoid().to(x.dtype)
        neighbours = x.unflatten(1, (gate.shape[1], -1))
        neighbours *= opened.unsqueeze(2)

    def scale(self, x: Tensor, factor: float) -> None:
        """Multiply x by factor, in place."""
        x *= factor

    def soft_cap(self, x: Tensor, cap: float) -> None:
        """Compute x = cap * tanh(x / cap) in place (Gemma 2)."""
        x.div_(cap).tanh_().mul_(cap)

    def take_rows(self, x: Tensor, rows: Tensor, out: Tensor) -> None:
        """Copy rows: out[R, H] = x[rows]."""
        torch.index_select(x, 0, rows, out=out)

    def route(self, logits: Tensor, routing: RoutingSpec, bias: Tensor | None, ids: Tensor, weights: Tensor) -> None:
        """Choose the experts of each token; see `core_runtime.layers.experts.route`."""
        route(logits, routing, bias, ids, weights)
