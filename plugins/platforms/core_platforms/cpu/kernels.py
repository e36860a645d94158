"""The native kernels of the `cpu` platform, implementing the `kernels` contract.

Owns: one method per operation, and the checks of its tensors; the arithmetic is in `native/`.
Never does: fall back by itself (`core_runtime.layers.kernels` chooses another provider where `supports` gives reasons).
Called by: the kernel set of the platform's runtime, hence every layer. A call costs about a microsecond of Python.

Between operations everything is float32 with contiguous rows; a row's stride may exceed its width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from core.api.errors import PluginError
from core.api.reason import Reason
from core.api.specs import Activation, KernelQuery
from core_platforms.cpu.activation_numbers import activation_numbers, alone_numbers
from core_platforms.cpu.checks import (
    check_heads,
    check_logits,
    check_masks,
    check_rows,
    check_same,
    check_table,
    check_tables,
)
from core_platforms.cpu.experts import NativeExperts, choose
from core_platforms.cpu.extension import kernels_or_reason
from core_platforms.cpu.kernels_limits import NUMERICS, OPERATIONS
from core_platforms.cpu.low_rank import Arena, NativeLowRank, low_rank_reasons
from core_platforms.cpu.native_linear import (
    FEATURES,
    ROW_LAYOUTS,
    NativeLinear,
    linear_reasons,
    prepared_nbytes,
)
from core_platforms.cpu.saved_linear import LAYOUT, restored_linear, saved_linear
from core_runtime.contracts import LinearKernel, LowRankForm, RaceCall, SavedKernel
from core_runtime.layers.experts import COMBINE_RANGES
from core_runtime.specs.routing_spec import RoutingSpec
from core_runtime.weights.formats import CanonicalWeight
from core_runtime.weights.int_groups import FEATURES as WEIGHT_FEATURES
from core_runtime.weights.prepared_inputs import PreparedInputs


class NativeKernels:
    """The operations of a forward pass, run on the extension's own threads. Results are bit-identical for any batch and
    thread count.
    """

    name = "cpu_native"
    layout = LAYOUT
    capturable = True
    max_segments = 8
    features = FEATURES | WEIGHT_FEATURES
    row_layouts = frozenset(ROW_LAYOUTS)

    def __init__(self, num_threads: int) -> None:
        native = kernels_or_reason()
        if isinstance(native, Reason):
            raise PluginError(f"kernels cpu_native are not available: {native}")
        self._native = native
        self._arena = Arena()
        self.num_threads: int = native.pool_init(num_threads)
        self.numerics = f"{NUMERICS}:{native.isa()}"

    def supports(self, query: KernelQuery) -> list[Reason]:
        """Return the reasons why the operation is not supported; empty means supported."""
        reasons = []
        if query.device != "cpu":
            reasons.append(Reason("device", "cpu", query.device))
        if query.op not in OPERATIONS:
            reasons.append(Reason("op", ", ".join(sorted(OPERATIONS)), query.op))
        if query.op == "linear":
            reasons += linear_reasons(query)
        if query.op == "low_rank":
            reasons += low_rank_reasons(query)
        return reasons

    def linear(
        self,
        weight: CanonicalWeight,
        *,
        activation: Activation,
        bias: Tensor | None = None,
        into: Tensor | None = None,
        segments: int = 1,
    ) -> NativeLinear:
        """Repack a weight once, into the caller's memory when `into` is given; the caller then drops `weight`."""
        return NativeLinear(self._native, weight, activation, bias, into, segments)

    def prepared_nbytes(self, weight: CanonicalWeight, *, activation: Activation) -> int:
        """Return the size of the packed weight in bytes."""
        return prepared_nbytes(self._native, weight, activation)

    def save(
        self,
        kernel: LinearKernel,
        weight: CanonicalWeight,
        *,
        activation: Activation,
        bias: Tensor | None,
        segments: int,
    ) -> SavedKernel | None:
        """Describe a packed kernel for saving: the `SavesKernels` contract."""
        if not isinstance(kernel, NativeLinear):
            return None
        weight = weight.weight if isinstance(weight, PreparedInputs) else weight
        return saved_linear(kernel, weight, activation, bias, min(segments, self.max_segments))

    def restore(self, saved: SavedKernel) -> NativeLinear:
        """Rebuild a kernel from its saved form: the `SavesKernels` contract."""
        return restored_linear(self._native, saved)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """Compute out[T, H] = x / sqrt(mean(x²) + eps) * weight; out may be x."""
        self._norm(x, weight, None, eps, out, centred=False)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor) -> None:
        """Compute out[T, H] = (x - mean) / sqrt(variance + eps) * weight (+ bias); out may be x."""
        self._norm(x, weight, bias, eps, out, centred=True)

    def rms_norm_heads(self, x: Tensor, weight: Tensor, eps: float) -> None:
        """Normalize x [T, H, D] in place over its last axis; weight [D] or [H, D]."""
        self._norm_heads(x, weight, None, eps, centred=False)

    def layer_norm_heads(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> None:
        """Normalize x [T, H, D] in place over its last axis; weight and bias [D] or [H, D]."""
        self._norm_heads(x, weight, bias, eps, centred=True)

    def _norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor, *, centred: bool) -> None:
        width = weight.shape[0]
        rows, stride = check_rows(x, width, "x")
        out_rows, out_stride = check_rows(out, width, "out")
        check_same(rows, out_rows, "out")
        gain = check_table(weight, torch.float32, "weight")
        shift = _bias_address(bias, weight)
        places = (x.data_ptr(), stride, 0, out.data_ptr(), out_stride, 0)
        self._native.norm(*places, gain, eps, rows, 1, width, 0, shift, centred)

    def _norm_heads(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, *, centred: bool) -> None:
        rows, heads, width, row, head = check_heads(x, "x")
        shape = tuple(weight.shape)
        if shape not in ((width,), (heads, width)):
            raise ValueError(
                f"weight has {shape} elements, expected the head size {width}, or {(heads, width)} for each head"
            )
        gain = check_table(weight, torch.float32, "weight")
        shift = _bias_address(bias, weight)
        step = width if len(shape) > 1 else 0
        data = x.data_ptr()
        self._native.norm(data, row, head, data, row, head, gain, eps, rows, heads, width, step, shift, centred)

    def rotary(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> None:
        """Rotate q [T, Hq, D] and k [T, Hkv, D] in place: pairs (i, i + R/2) of the first R = 2 * cos.shape[1] of D."""
        half = cos.shape[1]
        cosines = check_table(cos, torch.float32, "cos")
        sines = check_table(sin, torch.float32, "sin")
        places = check_table(positions, torch.int64, "positions")
        for x in (q, k):
            rows, heads, width, row, head = check_heads(x, "q or k")
            check_same(positions.shape[0], rows, "q or k")
            if 2 * half > width:
                raise ValueError(f"cos has {half} columns, expected at most half of the head size {width}")
            self._native.rotary(x.data_ptr(), row, head, rows, heads, half, cosines, sines, places)

    def gated(self, x: Tensor, activation: str, out: Tensor) -> None:
        """Compute out[T, I] = act(x[:, :I]) * x[:, I:] for any activation of `core_runtime.layers.activations`."""
        width = out.shape[1]
        rows, stride = check_rows(x, 2 * width, "x")
        out_rows, out_stride = check_rows(out, width, "out")
        check_same(rows, out_rows, "out")
        numbers = activation_numbers(activation)
        self._native.gated(x.data_ptr(), stride, out.data_ptr(), out_stride, rows, width, *numbers)

    def activate(self, x: Tensor, activation: str, out: Tensor) -> None:
        """Compute out[T, I] = act(x) for any ungated activation of `core_runtime.layers.activations`; out may be x."""
        width = out.shape[1]
        rows, stride = check_rows(x, width, "x")
        out_rows, out_stride = check_rows(out, width, "out")
        check_same(rows, out_rows, "out")
        numbers = alone_numbers(activation)
        self._native.activate(x.data_ptr(), stride, out.data_ptr(), out_stride, rows, width, *numbers)

    def add(self, x: Tensor, residual: Tensor) -> None:
        """Add x to residual in place, both [T, H]."""
        width = residual.shape[1]
        rows, stride = check_rows(x, width, "x")
        out_rows, out_stride = check_rows(residual, width, "residual")
        check_same(rows, out_rows, "residual")
        self._native.add(x.data_ptr(), stride, residual.data_ptr(), out_stride, rows, width, 0.0)

    def open_gate(self, gate: Tensor, x: Tensor) -> None:
        """Compute x[T, W] *= sigmoid(gate[T, G]): each gate value scales W / G neighbouring elements of x."""
        width = x.shape[1]
        num_gates = gate.shape[1]
        if width % num_gates:
            raise ValueError(f"{num_gates} numbers of a gate for {width} of x, expected a divisor")
        rows, stride = check_rows(gate, num_gates, "gate")
        x_rows, x_stride = check_rows(x, width, "x")
        check_same(rows, x_rows, "x")
        self._native.open_gate(gate.data_ptr(), stride, x.data_ptr(), x_stride, rows, width, float(width // num_gates))

    def scale(self, x: Tensor, factor: float) -> None:
        """Multiply x[T, H] by `factor` in place."""
        rows, stride = check_rows(x, x.shape[1], "x")
        self._native.scale(0, 0, x.data_ptr(), stride, rows, x.shape[1], factor)

    def soft_cap(self, x: Tensor, cap: float) -> None:
        """Compute x[T, V] = cap * tanh(x / cap) in place."""
        rows, stride = check_rows(x, x.shape[1], "x")
        self._native.soft_cap(0, 0, x.data_ptr(), stride, rows, x.shape[1], cap)

    def take_rows(self, x: Tensor, rows: Tensor, out: Tensor) -> None:
        """Gather rows: out[R, H] = x[rows], rows int64 [R] within x."""
        width = x.shape[1]
        _, stride = check_rows(x, width, "x")
        count, out_stride = check_rows(out, width, "out")
        check_same(rows.shape[0], count, "out")
        which = check_table(rows, torch.int64, "rows")
        self._native.take_rows(x.data_ptr(), stride, which, count, out.data_ptr(), out_stride, width)

    def race(self, *arguments: Any) -> None:
        """Sample tokens: the `MaskedRaceKernel` contract. Picks the tokens of `core_runtime.sampling.race` without
        drawing noise for the whole vocabulary.
        """
        call = RaceCall(*arguments)
        which = call.which
        data, (stride, vocab_size, count) = check_logits(call.logits, which)
        rows, heat, tokens = check_tables(
            count, "race", (which, torch.int64), (call.temperatures, torch.float32), (call.out, torch.int64)
        )
        if call.keys.shape != (count, 5):
            raise ValueError(f"keys have the shape {tuple(call.keys.shape)}, expected {count} rows of 5 words")
        words = check_table(call.keys, torch.int64, "keys")
        limits = [0, 0, 0]
        if call.filters is not None:
            top_k, top_p, least = call.filters
            limits = check_tables(count, "race", (top_k, torch.int64), (top_p, torch.float64), (least, torch.float32))
        mask_table = [0, 0, 0] if call.masks is None else check_masks(call.masks, count, vocab_size)
        self._native.race(data, stride, vocab_size, count, rows, words, heat, *limits, *mask_table, tokens)

    masked_race = race

    def logprobs(
        self, logits: Tensor, which: Tensor, chosen: Tensor, counts: Tensor, ids: Tensor, values: Tensor, ranks: Tensor
    ) -> None:
        """Compute logprobs of the chosen and most likely tokens: the `LogprobsKernel` contract."""
        data, (stride, vocab_size, count) = check_logits(logits, which)
        rows, width = ids.shape
        most = min(width - 1, vocab_size)
        if rows:
            counts_fit = int(counts.min()) >= 0 and int(counts.max()) <= most
            if not counts_fit:
                raise ValueError(f"counts {counts.tolist()}: expected 0 to {most}")
            chosen_fit = int(chosen.min()) >= 0 and int(chosen.max()) < vocab_size
            if not chosen_fit:
                raise IndexError(f"chosen tokens {chosen.tolist()} of {vocab_size}")
        wide = torch.int64
        places, picked, wanted, found = check_tables(
            rows, "logprobs", (which, wide), (chosen, wide), (counts, wide), (ranks, wide)
        )
        if values.shape != ids.shape:
            raise ValueError(f"values have the shape {tuple(values.shape)}, expected {tuple(ids.shape)}")
        tops = check_table(ids, wide, "ids")
        logprobs = check_table(values, torch.float64, "values")
        self._native.logprobs(data, stride, vocab_size, count, width, places, picked, wanted, tops, logprobs, found)

    def route(self, logits: Tensor, routing: RoutingSpec, bias: Tensor | None, ids: Tensor, weights: Tensor) -> None:
        """Route each token to its experts: the `RouteKernel` contract."""
        choose(self._native, logits, routing, bias, ids, weights)

    def experts(
        self,
        gate_up: Sequence[LinearKernel],
        down: Sequence[LinearKernel],
        activation: str,
        *,
        weight_inputs: bool = False,
        max_ranges: int = COMBINE_RANGES,
    ) -> NativeExperts | None:
        """Return the `ExpertsKernel` of these layers; None for layers of another provider, or with weights of different
        formats.
        """
        first = _alike(gate_up)
        second = _alike(down)
        if first is None or second is None:
            return None
        return NativeExperts(self._native, first, second, activation, weight_inputs, max_ranges)

    def low_rank(self, form: LowRankForm) -> NativeLowRank:
        """Return the empty table of the adapters of one layer: the `HasLowRank` contract."""
        return NativeLowRank(self._native, form, self._arena)


def _bias_address(bias: Tensor | None, weight: Tensor) -> int:
    """Return the address of a norm's bias, 0 without one. Raises ValueError."""
    if bias is None:
        return 0
    if bias.shape != weight.shape:
        raise ValueError(f"bias has the shape {tuple(bias.shape)}, expected that of the weight, {tuple(weight.shape)}")
    return check_table(bias, torch.float32, "bias")


def _alike(side: Sequence[LinearKernel]) -> list[NativeLinear] | None:
    """Return the layers when all are native and of one format, else None."""
    layers = [layer for layer in side if isinstance(layer, NativeLinear)]
    forms = {layer.form for layer in layers}
    if len(layers) != len(side) or len(forms) != 1:
        return None
    return layers
