"""The operations of the `triton` kernels, implementing the `kernels` contract.

Owns: one method per operation, and the list of supported operations. Never does: arithmetic (the neighbouring modules
do), nor fall back by itself (`core_runtime.layers.kernels` chooses another provider where `supports` gives reasons).
Called by: the kernel set of the platform's runtime, hence every layer.

Tensors between operations are bfloat16, float16 or float32; every operation computes in float32 and rounds once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from core.api.reason import Reason
from core.api.specs import Activation, KernelQuery
from core_kernels.triton import activation as activations
from core_kernels.triton import elementwise, norm, portable, rotary
from core_kernels.triton.compiling.bound import bind_kernels
from core_kernels.triton.compiling.late import LateCompilations
from core_kernels.triton.compiling.launch import architecture_of
from core_kernels.triton.compiling.warm_up import Compiling
from core_kernels.triton.limits import ACTIVATIONS, ADAPTERS, CODED, DEVICES, FORMATS, OPERATIONS, numerics_name
from core_kernels.triton.low_rank_table import TritonLowRank
from core_kernels.triton.products.experts import TritonExperts
from core_kernels.triton.products.heads import TritonHeads
from core_kernels.triton.products.linear import TritonLinear, linear_of
from core_kernels.triton.products.packed import NARROWEST
from core_kernels.triton.products.tiles import Tiles, tiles_with
from core_kernels.triton.route import choose_experts
from core_kernels.triton.sampler import logprobs, race
from core_runtime.contracts import GatedOperation, LowRankForm
from core_runtime.layers.activations import NUMBERS
from core_runtime.specs.routing_spec import RoutingSpec
from core_runtime.weights.canonical import INPUT_GROUP
from core_runtime.weights.experts import Experts
from core_runtime.weights.formats import CanonicalWeight
from core_runtime.weights.int_groups import FEATURES as WEIGHT_FEATURES


class TritonKernels:
    """The operations of a forward pass and the sampler. A row's bits do not depend on other rows.

    tiles: tile tables of the products; None: the built-in ones.
    early: whether kernels are launched while the previous ones still run, on devices that can do so.
    warms_up: whether kernels are compiled before an engine is ready, instead of when they are first launched.
    """

    name = "triton"
    capturable = True
    numerics = numerics_name()
    features = frozenset(
        {*NUMBERS, *WEIGHT_FEATURES, "partial_rotary", "norms_by_head", "sparse_mixer", "routing_epsilon"}
    )

    def __init__(self, tiles: Tiles | None = None, early: bool = True, *, warms_up: bool = True) -> None:
        self.tiles = tiles or tiles_with(None)
        self.early = early
        self._warms_up = warms_up and not portable.INTERPRETED.value
        self._late = LateCompilations()
        bind_kernels("core_kernels")

    @property
    def late(self) -> int:
        """Kernels that steps have waited for: the `WarmsUp` contract."""
        return self._late.count

    def warm_up(self, run: str, config: str) -> Compiling | None:
        """Begin to compile what `run` launches: the `WarmsUp` contract."""
        if not self._warms_up:
            return None
        return Compiling(architecture_of(torch.device("cuda")), run, config, self._late)

    def supports(self, query: KernelQuery) -> list[Reason]:
        """Return the reasons why an operation is not supported; empty means supported."""
        reasons = []
        devices = (*DEVICES, "cpu") if portable.INTERPRETED.value else DEVICES
        if query.device.partition(":")[0] not in devices:
            reasons.append(Reason("device", ", ".join(devices), query.device))
        if query.op not in OPERATIONS:
            reasons.append(Reason("op", ", ".join(sorted(OPERATIONS)), query.op))
        if query.op in ("linear", "grouped_experts"):
            reasons += _weight_reasons(query)
        if query.op == "low_rank" and query.format and query.format not in ADAPTERS:
            reasons.append(Reason("format", ", ".join(ADAPTERS), query.format))
        return reasons

    def linear(self, weight: CanonicalWeight, *, activation: Activation, bias: Tensor | None = None) -> TritonLinear:
        """Repack a weight once; the caller then drops `weight`."""
        return linear_of(weight, activation, bias, self.tiles, self.early)

    def grouped_experts(
        self, gate_up: Experts, down: Experts, activation: str, *, precision: Activation, gated: GatedOperation
    ) -> TritonExperts:
        """Build the experts of a layer, with one weight per side."""
        within = gated == self.gated
        return TritonExperts(gate_up, down, activation, precision, gated, within, self.tiles, self.early)

    def heads(self, weight: Tensor, activation: Activation) -> TritonHeads:
        """Prepare a dense weight [H, N, K], one matrix per head."""
        return TritonHeads(weight, activation, self.tiles, self.early)

    def low_rank(self, form: LowRankForm) -> TritonLowRank:
        """Make the empty table of the adapters of one layer: the `HasLowRank` contract."""
        return TritonLowRank(form)

    def route(self, logits: Tensor, routing: RoutingSpec, bias: Tensor | None, ids: Tensor, weights: Tensor) -> None:
        """Choose the experts of each token: the `RouteKernel` contract."""
        choose_experts(logits, routing, bias, ids, weights)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """Compute out[T, H] = x / sqrt(mean(x²) + eps) * weight; out may be x."""
        norm.norm_rows(x, weight, None, eps, out, centred=False, early=self.early)

    def take_rms_norm(self, x: Tensor, rows: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """Compute out[R, H] = the norm of x[rows] in one launch: the `TakeNorm` contract."""
        norm.norm_rows(x, weight, None, eps, out, centred=False, rows=rows, early=self.early)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor) -> None:
        """Compute out[T, H] = (x - mean) / sqrt(variance + eps) * weight (+ bias); out may be x."""
        norm.norm_rows(x, weight, bias, eps, out, centred=True, early=self.early)

    def rms_norm_heads(self, x: Tensor, weight: Tensor, eps: float) -> None:
        """Normalize x [T, H, D] in place over its last axis; weight [D] or [H, D]."""
        norm.norm_heads(x, weight, None, eps, centred=False, early=self.early)

    def layer_norm_heads(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> None:
        """Normalize x [T, H, D] in place over its last axis; weight and bias [D] or [H, D]."""
        norm.norm_heads(x, weight, bias, eps, centred=True, early=self.early)

    def rotary(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> None:
        """Rotate q [T, Hq, D] and k [T, Hkv, D] in place: pairs (i, i + R/2) of the first R = 2 * cos.shape[1] of D."""
        rotary.rotate_heads(q, k, cos, sin, positions)

    def gated(self, x: Tensor, activation: str, out: Tensor) -> None:
        """Compute out[T, I] = act(x[:, :I]) * x[:, I:] for any activation of `core_runtime.layers.activations`."""
        activations.activate_rows(x, activation, out, gated=True, early=self.early)

    def activate(self, x: Tensor, activation: str, out: Tensor) -> None:
        """Compute out[T, I] = act(x) for any ungated activation of `core_runtime.layers.activations`."""
        activations.activate_rows(x, activation, out, gated=False, early=self.early)

    def add(self, x: Tensor, residual: Tensor) -> None:
        """Add x to residual in place, both [T, H]."""
        elementwise.add_rows(x, residual)

    def add_rms_norm(
        self, x: Tensor, before: Tensor | None, residual: Tensor, behind: Tensor, eps: float, out: Tensor
    ) -> None:
        """Add and normalize in one launch: the `AddNorm` contract."""
        norm.add_norm_rows(x, before, residual, behind, eps, out, early=self.early)

    def open_gate(self, gate: Tensor, x: Tensor) -> None:
        """Compute x[T, W] *= sigmoid(gate[T, G]): each gate value scales W / G neighbouring elements of x."""
        elementwise.open_rows(gate, x)

    def scale(self, x: Tensor, factor: float) -> None:
        """Multiply x[T, H] by `factor` in place."""
        elementwise.scale_rows(x, factor)

    def soft_cap(self, x: Tensor, cap: float) -> None:
        """Compute x[T, V] = cap * tanh(x / cap) in place."""
        elementwise.scale_rows(x, cap, capped=True)

    def take_rows(self, x: Tensor, rows: Tensor, out: Tensor) -> None:
        """Copy out[R, H] = x[rows], rows int64 [R] within x."""
        elementwise.take_rows(x, rows, out, early=self.early)

    def race(self, *arguments: Any) -> None:
        """Sample tokens as `core_runtime.sampling.race` does: the `MaskedRaceKernel` contract. All tensors must be on
        one device.
        """
        race.race(*arguments)

    masked_race = race

    def logprobs(
        self, logits: Tensor, which: Tensor, chosen: Tensor, counts: Tensor, ids: Tensor, values: Tensor, ranks: Tensor
    ) -> None:
        """Compute logprobs: the `LogprobsKernel` contract. All tensors must be on one device."""
        logprobs.compute_logprobs(logits, which, chosen, counts, ids, values, ranks)


def _weight_reasons(query: KernelQuery) -> list[Reason]:
    """Return the reasons why a weight is not supported."""
    reasons = []
    if query.format not in FORMATS:
        reasons.append(Reason("format", ", ".join(FORMATS), query.format))
    if query.activation not in ACTIVATIONS:
        reasons.append(Reason("activation", ", ".join(ACTIVATIONS), query.activation))
    if query.activation == "fp8_row" and query.format != CODED:
        reasons.append(Reason("activation", f"fp8_row with {CODED} weights", query.format))
    group_size = int(query.attributes.get("group_size", 0))
    one_group = bool(query.shape) and group_size >= query.shape[-1]
    is_cut = bool(query.shape) and not one_group and group_size > INPUT_GROUP and query.shape[-1] % group_size > 0
    if query.activation == "int8" and is_cut:
        reasons.append(Reason("group_size", "groups that fill the inputs", str(group_size)))
    if group_size % NARROWEST and not one_group:
        reasons.append(Reason("group_size", f"a multiple of {NARROWEST}", str(group_size)))
    return reasons
