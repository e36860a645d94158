"""Experts in MXFP4 as two calls of `matmul_ogs`.

Owns: `LibraryExperts` and what stands for it in a dry run, the library's layouts of weights, and its description of who goes
to which expert. Never does:
choose experts, nor sum them (`combine_rows` does, in the engine's order). Called by: the provider, hence models.

The interface is that of triton_kernels 3.5: W is [E, K, N], MXFP4 packed along K, the even input in the low bits.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from core.api.errors import UserError
from core.api.specs import Activation
from core_kernels.cublas.experts import by_expert
from core_kernels.triton.combine import combine_rows
from core_runtime.contracts import GatedOperation
from core_runtime.layers.activations import parse
from core_runtime.weights.codebook import Codebook
from core_runtime.weights.experts import Experts

FUSED = "clamped_swiglu"
"""The gate that the library computes within its product."""
SCALE_WARPS = 8
"""Warps for which the library lays out scales; it multiplies with as many."""


class Side:
    """One product of all experts: W, its scales in the library's layout, and the biases, float32 [E, N] or None."""

    def __init__(self, library: ModuleType, experts: Experts, bias: Tensor | None, *, alternating: bool) -> None:
        weight = experts.weight
        assert isinstance(weight, Codebook)
        if weight.row_scale is not None:
            raise UserError(
                "triton_kernels multiplies no mxfp4 experts with a scale for each row; use --kernels triton"
            )
        parts = experts.tensors()
        values, scale = parts["values"], parts["scale"]
        wide = None if bias is None else bias.float()
        if alternating:
            values, scale = _alternating(values), _alternating(scale)
            wide = None if wide is None else _alternating(wide)
        tensor = _module("tensor")
        layout = _module("tensor_details.layout")
        form, options = layout.make_default_matmul_mxfp4_w_layout(mx_axis=1)
        packed = tensor.wrap_torch_tensor(values.transpose(1, 2), dtype=tensor.FP4)
        self.weight = tensor.convert_layout(packed, form, **options)
        form, options = layout.make_default_matmul_mxfp4_w_scale_layout(mx_axis=1, num_warps=SCALE_WARPS)
        self.scale = tensor.convert_layout(tensor.wrap_torch_tensor(scale.transpose(1, 2)), form, **options)
        context = library.FlexCtx(rhs_data=_module("numerics").InFlexData())
        self.precision = library.PrecisionConfig(weight_scale=self.scale, flex_ctx=context)
        self.bias = wide
        kept = [self.weight.storage.data, self.scale.storage.data, *(() if wide is None else (wide,))]
        self.nbytes = sum(part.nbytes for part in kept)


class LibraryExperts:
    """The experts of one layer. Implements `core_runtime.contracts.ExpertsKernel`.

    biases: [E, 2 * I] and [E, H], or None.
    gated: the gate between both products, for one that the library does not compute.
    persistent: whether the library must use its persistent kernel, which alone reads the scales' layout of sm_100.
    """

    capturable = True

    def __init__(
        self,
        gate_up: Experts,
        down: Experts,
        biases: tuple[Tensor, Tensor] | None,
        activation: str,
        precision: Activation,
        gated: GatedOperation,
        *,
        persistent: bool,
    ) -> None:
        self.library = _module("matmul_ogs")
        if persistent:
            self.library.update_opt_flags_constraints({"is_persistent": True, "epilogue_subtile": 1})
        self.count = gate_up.count
        self.activation = activation
        self.precision = precision
        self.gated = gated
        self.inner, self.hidden = down.shape[2], down.shape[1]
        self.gate = self._gate()
        first, second = biases or (None, None)
        self.gate_up = Side(self.library, gate_up, first, alternating=self.gate is not None)
        self.down = Side(self.library, down, second, alternating=False)
        self.nbytes = self.gate_up.nbytes + self.down.nbytes

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """Compute the weighted sum of each token's experts: the `ExpertsKernel` contract."""
        if not len(ids):
            return
        inputs = x.bfloat16() if self.precision == "bf16" else x
        if inputs.dtype not in (torch.bfloat16, torch.float16):
            raise UserError(f"triton_kernels multiplies bfloat16 and float16, not {x.dtype}; use --kernels triton")
        order, ends = by_expert(ids, self.count)
        routing = _module("routing")
        hist = torch.diff(ends, prepend=ends.new_zeros(1))
        data = routing.compute_expt_data(hist, self.count, len(order))
        routed = routing.RoutingData(weights.flatten()[order], hist, self.count, ids.shape[1], data)
        gather = routing.GatherIndx(order.int(), torch.argsort(order).int())
        first = self._product(inputs, self.gate_up, routed, gather_indx=gather, fused_activation=self.gate)
        if self.gate is None:
            both = first
            first = both.new_empty(len(both), self.inner)
            self.gated(both, self.activation, first)
        second = self._product(first, self.down, routed)
        parts = torch.empty(len(order), self.hidden, dtype=x.dtype, device=x.device)
        parts[order] = second.to(x.dtype)
        combine_rows(parts, ids, weights, out, self.count, accumulate)

    def _product(self, x: Tensor, side: Side, routed: Any, **options: Any) -> Tensor:
        """Return [R, N]: a row for each token and choice, in the order of their experts."""
        rows = self.library.matmul_ogs(x, side.weight, side.bias, routed, precision_config=side.precision, **options)
        return rows.view(-1, rows.shape[-1])

    def _gate(self) -> Any:
        """Return the gate of gpt-oss as the library computes it within a product, or None for another gate."""
        kind, numbers = parse(self.activation)
        if kind != FUSED:
            return None
        function = self.library.FnSpecs("swiglu", _module("swiglu").swiglu_fn, ("alpha", "limit"))
        return self.library.FusedActivation(function, numbers, 2)


class UnreadExperts:
    """The experts of one layer in a dry run, whose weights have no memory: the calls around the library's products.

    The library's own kernels are compiled when they are first launched. gated: see `LibraryExperts`.
    """

    capturable = True

    def __init__(self, gate_up: Experts, down: Experts, activation: str, gated: GatedOperation) -> None:
        self.count = gate_up.count
        self.shape = down.shape
        self.activation = activation
        self.gated = None if parse(activation).kind == FUSED else gated
        self.nbytes = gate_up.nbytes + down.nbytes

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """Launch what `LibraryExperts` does, but for the library."""
        _, hidden, inner = self.shape
        if self.gated is not None:
            self.gated(x.new_empty(ids.numel(), 2 * inner), self.activation, x.new_empty(ids.numel(), inner))
        combine_rows(x.new_empty(ids.numel(), hidden), ids, weights, out, self.count, accumulate)


def _alternating(rows: Tensor) -> Tensor:
    """Return [E, 2 * I, ...] with the rows of gate and up in turns, where all gates came first."""
    return rows.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)


def _module(name: str) -> Any:
    """Return a module of the library."""
    return importlib.import_module(f"triton_kernels.{name}")
