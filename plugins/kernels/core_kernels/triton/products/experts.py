"""Expert layers: all experts of a layer in one launch.

Owns: `TritonExperts`, and the assignment of rows to experts. Never does: choose experts. Called by: the provider, hence
models.

Every (token, choice) pair is a row. Few rows get one block each; more are sorted by expert into padded blocks of rows.
Either way the number of blocks follows from the number of rows alone, so the host does not wait for the device.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from core.api.specs import Activation
from core_kernels.triton.combine import combine_rows
from core_kernels.triton.compiling.launch import blocks
from core_kernels.triton.products.packed import in_stored_order, packed
from core_kernels.triton.products.product import Routed, multiply
from core_kernels.triton.products.rounding import groups_of, inputs_of
from core_kernels.triton.products.tiles import Tiles
from core_runtime.contracts import GatedOperation
from core_runtime.weights.experts import Experts

FEW_ROWS = 64
"""Up to this many rows, sorting is skipped."""
BLOCK_ROWS = (16, 32, 64, 128)


class TritonExperts:
    """The experts of one layer. Implements `core_runtime.contracts.ExpertsKernel`. tiles: tile tables of the products."""

    capturable = True

    def __init__(
        self,
        gate_up: Experts,
        down: Experts,
        activation: str,
        precision: Activation,
        gated: GatedOperation,
        tiles: Tiles,
    ) -> None:
        self.count = gate_up.count
        self.activation = activation
        self.precision = precision
        self.gated = gated
        self.tiles = tiles
        self.up_groups = groups_of(gate_up.weight, precision)
        self.down_groups = groups_of(down.weight, precision)
        self.gate_up = replace(packed(gate_up.weight), shape=gate_up.shape[1:])
        self.down = replace(packed(down.weight), shape=down.shape[1:])
        self.nbytes = self.gate_up.nbytes + self.down.nbytes

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """Compute the weighted sum of each token's experts: the `ExpertsKernel` contract."""
        tokens, top_k = ids.shape
        if not tokens:
            return
        rows = tokens * top_k
        compute = torch.bfloat16 if self.precision == "bf16" else x.dtype
        routed = route_rows(ids, self.count)
        shared = {"compute": compute, "tiles": self.tiles}
        both = x.new_empty(rows, self.gate_up.shape[0])
        inputs, x_scale = inputs_of(in_stored_order(x, self.gate_up), self.up_groups, self.precision)
        multiply(inputs, self.gate_up, both, None, routed=routed, x_scale=x_scale, **shared)
        inner = x.new_empty(rows, self.down.shape[1])
        self.gated(both, self.activation, inner)
        parts = x.new_empty(rows, self.down.shape[0])
        inner, x_scale = inputs_of(in_stored_order(inner, self.down), self.down_groups, self.precision)
        multiply(inner, self.down, parts, None, routed=replace(routed, divisor=1), x_scale=x_scale, **shared)
        combine_rows(parts, ids, weights, out, self.count, accumulate)


def route_rows(ids: Tensor, count: int) -> Routed:
    """Assign rows to blocks. ids: int64 [T, k], below `count`."""
    rows, top_k = ids.numel(), ids.shape[1]
    flat = ids.flatten()
    if rows <= FEW_ROWS:
        size = BLOCK_ROWS[0]
        pairs = torch.full((rows, size), -1, dtype=torch.int32, device=ids.device)
        pairs[:, 0] = torch.arange(rows, device=ids.device)
        return Routed(pairs.flatten(), flat.int(), top_k, count, size)
    size = _block_rows(rows, count)
    most = min(blocks(rows, size) + count, rows)
    sorted_ids, order = torch.sort(flat, stable=True)
    numbers = torch.arange(count, device=ids.device)
    starts = torch.searchsorted(sorted_ids, numbers)
    ends = torch.searchsorted(sorted_ids, numbers, right=True)
    sizes = (ends - starts + size - 1) // size  # blocks per expert
    last_blocks = sizes.cumsum(0)
    first_rows = (last_blocks - sizes) * size
    at = first_rows[sorted_ids] + torch.arange(rows, device=ids.device) - starts[sorted_ids]
    pairs = torch.full((most * size,), -1, dtype=torch.int32, device=ids.device)
    pairs[at] = order.int()
    every_block = torch.arange(most, device=ids.device)
    experts = torch.searchsorted(last_blocks, every_block, right=True)
    experts = torch.where(experts < count, experts, -1)
    return Routed(pairs, experts.int(), top_k, count, size)


def _block_rows(rows: int, count: int) -> int:
    """Return the smallest block size that is at least an expert's average share of the rows."""
    share = rows / count
    return next((size for size in BLOCK_ROWS if share <= size), BLOCK_ROWS[-1])
