"""Latent layers: a sequence's latents and rotated keys are gathered, and queries multiply them without expansion.

Owns: the location of both in a block, and the softmax over them. Never does: multiply with a projection (the core
does).
Called by: `backend.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from core.api.specs import KV_TYPES, LatentSpec
from core_attention.torch_sdpa.cache import SCALE_BYTES, StoredHeads, aligned
from core_attention.torch_sdpa.index import IndexKeys
from core_runtime.contracts import AttentionParams


class LatentLayer:
    """A latent layer bound to its cache.

    A block holds the latents [block_size, 1, R] of its tokens, their keys [block_size, 1, Dr], then the scales of both
    where the type has them, then the keys of an index (`index.py`).
    """

    def __init__(self, spec: LatentSpec, block_size: int, dtype: str, raw: Tensor, params: AttentionParams) -> None:
        kv_type = KV_TYPES[dtype]
        num_blocks = raw.shape[0]
        latent_bytes = block_size * spec.rank * kv_type.item_bytes
        key_bytes = block_size * spec.rope_size * kv_type.item_bytes
        scale_bytes = block_size * SCALE_BYTES if kv_type.scaled else 0
        of_tokens = latent_bytes + key_bytes + 2 * scale_bytes
        sizes = [latent_bytes, key_bytes, scale_bytes, scale_bytes, raw.shape[1] - of_tokens]
        c, k_pe, c_scales, k_scales, index = raw.split(sizes, dim=1)
        latent_shape = (num_blocks, block_size, 1, spec.rank)
        key_shape = (num_blocks, block_size, 1, spec.rope_size)
        self.scale = spec.scale
        self.spec = spec
        self.index = IndexKeys(spec, block_size, dtype, index) if spec.index_size else None
        self.block_size = block_size
        self.latents = StoredHeads(c, c_scales, latent_shape, dtype, params.k_scale)
        self.keys = StoredHeads(k_pe, k_scales, key_shape, dtype, params.k_scale)

    def write(self, block: Tensor, offset: Tensor, c: Tensor, k_pe: Tensor) -> None:
        """Store c [T, R] and k_pe [T, Dr] at (block [T], offset [T])."""
        self.latents.write(block, offset, c.unsqueeze(1))
        self.keys.write(block, offset, k_pe.unsqueeze(1))

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy slots to other slots."""
        self.latents.move(sources, targets, self.block_size)
        self.keys.move(sources, targets, self.block_size)
        if self.index is not None:
            self.index.stored.move(sources, targets, self.block_size)

    def attend(self, q_latent: Tensor, q_pe: Tensor, c: Tensor, k_pe: Tensor, out: Tensor) -> None:
        """Compute out[Tq, H, R] of the last Tq positions, q_latent [Tq, H, R] and q_pe [Tq, H, Dr], over c [L, R], k_pe
        [L, Dr].
        """
        num_queries = len(q_latent)
        num_keys = len(c)
        products = q_latent @ c.T + q_pe @ k_pe.T
        scores = products.float() * self.scale
        if num_queries > 1:
            key = torch.arange(num_keys, device=c.device)
            query = key[num_keys - num_queries :].unsqueeze(1)
            hidden = key > query
            scores = scores.masked_fill(hidden.unsqueeze(1), float("-inf"))
        weights = scores.softmax(-1).to(c.dtype)
        out.copy_(weights @ c)

    def attend_by_query(self, q_latent: Tensor, q_pe: Tensor, c: Tensor, k_pe: Tensor, out: Tensor) -> None:
        """Compute the same, one head of one query at a time over exactly its keys, at aligned addresses: equal bits for
        any chunking, and on any rank that holds the head.
        """
        past = len(c) - len(q_latent)
        for row in range(len(q_latent)):
            seen = past + row + 1
            this = slice(row, row + 1)
            self.attend_one(q_latent[this], q_pe[this], c[:seen].clone(), k_pe[:seen].clone(), out[this])

    def attend_one(self, q_latent: Tensor, q_pe: Tensor, c: Tensor, k_pe: Tensor, out: Tensor) -> None:
        """Compute out [1, H, R] of one query over all of c and k_pe, one head at a time."""
        # A library adds in another order where a product has another number of rows.
        for head in range(q_latent.shape[1]):
            this = slice(head, head + 1)
            latent = aligned(q_latent[:, this].float())
            rotated = aligned(q_pe[:, this].float())
            self.attend(latent, rotated, c, k_pe, out[:, this])

    def attend_chosen(
        self, q_latent: Tensor, q_pe: Tensor, c: Tensor, k_pe: Tensor, chosen: Tensor, out: Tensor, *, by_head: bool
    ) -> None:
        """Compute the same, one query at a time over its chosen keys. chosen: int32 [Tq, top_k], -1 after the last one."""
        attend = self.attend_one if by_head else self.attend
        for row in range(len(q_latent)):
            this = slice(row, row + 1)
            keys = chosen[row][chosen[row] >= 0].long()
            attend(q_latent[this], q_pe[this], c[keys], k_pe[keys], out[this])
