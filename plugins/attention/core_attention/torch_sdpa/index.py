"""The index of a latent layer: its keys in the cache, and the choice of the keys that a query reads, row by row.

Owns: the location of these keys behind a block's latents, and the order of equal scores. Never does: attend.
Called by: `backend.py`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from core.api.specs import KV_TYPES, LatentSpec
from core_attention.torch_sdpa.cache import StoredHeads, aligned

WIDE = "bfloat16"
"""Type of the keys of an index where the cache's numbers have 8 bits."""


def index_dtype(dtype: str) -> str:
    """Return the storage type of an index's keys in a cache of `dtype`."""
    return WIDE if KV_TYPES[dtype].item_bytes == 1 else dtype


class IndexKeys:
    """The keys of an index in a layer's cache.

    raw: uint8 [num_blocks, bytes], the part of each block that holds them.
    """

    def __init__(self, spec: LatentSpec, block_size: int, dtype: str, raw: Tensor) -> None:
        assert spec.index is not None, "only layers with an index have its keys"
        self.spec = spec.index
        self.block_size = block_size
        shape = (raw.shape[0], block_size, 1, spec.index.head_size)
        self.stored = StoredHeads(raw, raw[:, :0], shape, index_dtype(dtype), 1.0)

    def choose(self, q: Tensor, weights: Tensor, keys: Tensor, out: Tensor) -> None:
        """Write the chosen positions of the last Tq positions of a sequence to out, int32 [Tq, top_k].

        q: [Tq, Hi, Di]. weights: [Tq, Hi]. keys: float32 [L, Di].
        """
        past = len(keys) - len(q)
        for row in range(len(q)):
            seen = past + row + 1
            out[row] = -1
            out[row, : self.spec.top_k][:seen] = self._best(q[row], weights[row], keys[:seen])

    def _best(self, q: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
        """Return the positions of the best keys, ascending, of one query over exactly the keys that it sees."""
        if len(keys) <= self.spec.top_k:
            return torch.arange(len(keys), dtype=torch.int32, device=keys.device)
        products = (aligned(q.float()) @ aligned(keys).T) / math.sqrt(self.spec.head_size)
        scores = (weights.float().unsqueeze(1) * products.relu()).sum(0)
        scores = scores.masked_fill(scores.isnan(), float("-inf"))
        # Stable, so that of equal scores the earlier key is better.
        order = scores.argsort(descending=True, stable=True)
        return order[: self.spec.top_k].sort().values.to(torch.int32)
