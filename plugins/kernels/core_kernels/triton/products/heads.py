"""One matrix per head, all heads in one launch; implemented as experts that receive every token.

Owns: `TritonHeads`, and the assignment of rows to heads. Never does: multiply. Called by: the provider, hence latent
attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from core.api.specs import Activation
from core_kernels.triton.compiling.launch import blocks
from core_kernels.triton.products.assign import BLOCK_ROWS
from core_kernels.triton.products.packed import packed
from core_kernels.triton.products.product import Routed, multiply
from core_kernels.triton.products.rounding import groups_of, rounded
from core_kernels.triton.products.tiles import Tiles
from core_runtime.weights.formats import Dense


class TritonHeads:
    """A dense weight [H, N, K]. Implements `core_runtime.contracts.HeadsKernel`. early: see `TritonLinear`."""

    capturable = True

    def __init__(self, weight: Tensor, activation: Activation, tiles: Tiles, early: bool = False) -> None:
        self.count, outputs, inputs = weight.shape
        together = Dense(weight.reshape(-1, inputs))
        self.activation = activation
        self.tiles = tiles
        self.early = early
        self.groups = groups_of(together, activation)
        self.weight = replace(packed(together), shape=(outputs, inputs))
        self.nbytes = self.weight.nbytes

    def weights(self) -> list[Tensor]:
        """Return the tensors of the weight: the `MovesWeights` contract."""
        return list(self.weight.movable.values())

    def use_weights(self, tensors: Sequence[Tensor]) -> None:
        """Read other tensors: the `MovesWeights` contract."""
        self.weight = self.weight.over(tensors)

    def __call__(self, x: Tensor, out: Tensor) -> None:
        """Compute out[T, H, N] = x[T, H, K] @ W[H, N, K].T; rows and heads may be strided."""
        tokens, heads, _ = out.shape
        if not tokens:
            return
        compute = torch.bfloat16 if self.activation == "bf16" else x.dtype
        inputs = rounded(x.flatten(0, 1), self.groups)
        routed = every_head(tokens, heads, x.device)
        is_even = out.stride(0) == heads * out.stride(1)
        target = out.flatten(0, 1) if is_even else out.new_empty(tokens * heads, out.shape[2])
        how: dict[str, Any] = {"compute": compute, "tiles": self.tiles, "early": self.early}
        multiply(inputs, self.weight, target, None, routed=routed, **how)
        if not is_even:
            out.copy_(target.view(out.shape))


def every_head(tokens: int, heads: int, device: torch.device) -> Routed:
    """Return the blocks of rows [T * H], in which each row uses its head's matrix."""
    size = next((size for size in BLOCK_ROWS if tokens <= size), BLOCK_ROWS[-1])
    each = blocks(tokens, size)
    token = torch.arange(each * size, dtype=torch.int32, device=device)
    head = torch.arange(heads, dtype=torch.int32, device=device)
    pairs = torch.where(token < tokens, token * heads + head[:, None], -1)
    return Routed(pairs.flatten(), head.repeat_interleave(each), 1, heads, size)
