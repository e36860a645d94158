"""Expert layers: all experts of a layer in one launch.

Owns: `TritonExperts`. Never does: choose experts, nor assign rows to them. Called by: the provider, hence models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from core.api.specs import Activation
from core_kernels.triton.activation import gate_of
from core_kernels.triton.combine import combine_rows
from core_kernels.triton.products.assign import route_rows
from core_kernels.triton.products.packed import in_stored_order, packed
from core_kernels.triton.products.product import GATES, holds_gate, multiply
from core_kernels.triton.products.rounding import groups_of, inputs_of
from core_kernels.triton.products.tiles import Tiles
from core_runtime.contracts import GatedOperation
from core_runtime.layers.activations import parse
from core_runtime.weights.experts import Experts


class TritonExperts:
    """The experts of one layer. Implements `core_runtime.contracts.ExpertsKernel`.

    gated: the gate between the products.
    gates_within: whether the first product may compute the gate, because `gated` has the same bits.
    tiles: tile tables of the products. early: whether launches may begin before the previous ones have ended.
    """

    capturable = True

    def __init__(
        self,
        gate_up: Experts,
        down: Experts,
        activation: str,
        precision: Activation,
        gated: GatedOperation,
        gates_within: bool,
        tiles: Tiles,
        early: bool,
    ) -> None:
        self.count = gate_up.count
        self.activation = activation
        self.precision = precision
        self.gated = gated
        self.tiles = tiles
        self.early = early
        self.up_groups = groups_of(gate_up.weight, precision)
        self.down_groups = groups_of(down.weight, precision)
        self.gate_up = replace(packed(gate_up.weight), shape=gate_up.shape[1:])
        self.down = replace(packed(down.weight), shape=down.shape[1:])
        can_gate = gates_within and holds_gate(self.gate_up) and parse(activation).kind in GATES
        self.gate = gate_of(activation) if can_gate else None
        self.nbytes = self.gate_up.nbytes + self.down.nbytes

    def weights(self) -> list[Tensor]:
        """Return the tensors of both sides: the `MovesWeights` contract."""
        return [*self.gate_up.movable.values(), *self.down.movable.values()]

    def use_weights(self, tensors: Sequence[Tensor]) -> None:
        """Read other tensors: the `MovesWeights` contract."""
        first = len(self.gate_up.movable)
        self.gate_up, self.down = self.gate_up.over(tensors[:first]), self.down.over(tensors[first:])

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """Compute the weighted sum of each token's experts: the `ExpertsKernel` contract."""
        tokens, top_k = ids.shape
        if not tokens:
            return
        rows = tokens * top_k
        compute = torch.bfloat16 if self.precision == "bf16" else x.dtype
        routed = route_rows(ids, self.count)
        shared: dict[str, Any] = {"compute": compute, "tiles": self.tiles, "early": self.early}
        inputs, x_scale = inputs_of(in_stored_order(x, self.gate_up), self.up_groups, self.precision)
        inner = x.new_empty(rows, self.down.shape[1])
        if self.gate is not None:
            multiply(inputs, self.gate_up, inner, None, routed=routed, x_scale=x_scale, gate=self.gate, **shared)
        else:
            both = x.new_empty(rows, self.gate_up.shape[0])
            multiply(inputs, self.gate_up, both, None, routed=routed, x_scale=x_scale, **shared)
            self.gated(both, self.activation, inner)
        parts = x.new_empty(rows, self.down.shape[0])
        inner, x_scale = inputs_of(in_stored_order(inner, self.down), self.down_groups, self.precision)
        multiply(inner, self.down, parts, None, routed=replace(routed, divisor=1), x_scale=x_scale, **shared)
        combine_rows(parts, ids, weights, out, self.count, accumulate, early=self.early)
