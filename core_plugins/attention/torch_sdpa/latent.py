"""Latent layers: a sequence's latents and rotated keys are gathered, and queries meet them as they are.

Owns: where both lie in a block, and the softmax over them. Never does: multiply with a projection (the core does).
Called by: `backend.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from core.api.specs import KV_TYPES, LatentSpec
from core.plugin.contracts import AttentionParams
from core_plugins.attention.torch_sdpa.cache import StoredHeads


class LatentLayer:
    """One layer. A block holds the latents [block_size, 1, R] of its tokens, their keys [block_size, 1, Dr], then the
    scales of both where the type has them."""

    def __init__(self, spec: LatentSpec, block_size: int, dtype: str, raw: Tensor, params: AttentionParams) -> None:
        widths = spec.rank, spec.rope_size
        sizes = [block_size * width * KV_TYPES[dtype].item_bytes for width in widths]
        scales = 4 * block_size if KV_TYPES[dtype].scaled else 0
        c, k_pe, c_scales, k_scales = raw.split([*sizes, scales, scales], dim=1)
        shape = (raw.shape[0], block_size, 1)
        self.scale = spec.scale
        self.latents = StoredHeads(c, c_scales, (*shape, spec.rank), dtype, params.k_scale)
        self.keys = StoredHeads(k_pe, k_scales, (*shape, spec.rope_size), dtype, params.k_scale)

    def write(self, block: Tensor, offset: Tensor, c: Tensor, k_pe: Tensor) -> None:
        """c [T, R] and k_pe [T, Dr] at (block [T], offset [T])."""
        self.latents.write(block, offset, c.unsqueeze(1))
        self.keys.write(block, offset, k_pe.unsqueeze(1))

    def read(self, blocks: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """c [L, R] and k_pe [L, Dr] of some blocks, in `dtype`."""
        return self.latents.read(blocks, dtype)[:, 0], self.keys.read(blocks, dtype)[:, 0]

    def attend(self, q_latent: Tensor, q_pe: Tensor, c: Tensor, k_pe: Tensor, out: Tensor) -> None:
        """out[Tq, H, R] of the last Tq positions, q_latent [Tq, H, R] and q_pe [Tq, H, Dr], over c [L, R], k_pe [L, Dr]."""
        scores = (torch.matmul(q_latent, c.T) + torch.matmul(q_pe, k_pe.T)).float() * self.scale
        if len(q_latent) > 1:
            positions = torch.arange(len(c), device=c.device)
            hidden = positions > positions[len(c) - len(q_latent) :].unsqueeze(1)
            scores = scores.masked_fill(hidden.unsqueeze(1), float("-inf"))
        out.copy_(torch.matmul(scores.softmax(-1).to(c.dtype), c))

    def attend_by_query(self, q_latent: Tensor, q_pe: Tensor, c: Tensor, k_pe: Tensor, out: Tensor) -> None:
        """The same, each query alone with just its keys, at aligned addresses: equal bits whatever the chunks."""
        for row in range(len(q_latent)):
            seen = len(c) - len(q_latent) + row + 1
            query, rotated = (
                q[row : row + 1].float().clone(memory_format=torch.contiguous_format) for q in (q_latent, q_pe)
            )
            self.attend(query, rotated, c[:seen].clone(), k_pe[:seen].clone(), out[row : row + 1])
