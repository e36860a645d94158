"""Keys and values in blocks, for backends whose attention is a library's.

Owns: the layout of a block, and writing to it in a way that can be recorded. Never does: attend.
Called by: the backends `flash_attn`, `flashinfer` and `flex`.

A block holds K [block_size, Hkv, D], then V of the same shape, in the cache's own dtype: what all of these libraries read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from core.api.specs import KV_TYPES, AttentionSpec, KVLayout
from core_runtime.contracts import AttentionParams, BatchView

DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class PagedLayer:
    """One layer.

    spec: its sizes.
    keys, values: [num_blocks, block_size, Hkv, D], views of the cache.
    sinks, slopes: float32 [Hq] or None.
    """

    spec: AttentionSpec
    keys: Tensor
    values: Tensor
    sinks: Tensor | None
    slopes: Tensor | None


@dataclass(frozen=True, slots=True)
class Places:
    """Where a step writes.

    rows: int64 [T], the row to write at each place; a padded row writes the first one again.
    blocks, offsets: int64 [T], its place.
    """

    rows: Tensor
    blocks: Tensor
    offsets: Tensor

    @classmethod
    def of(cls, view: BatchView) -> Places:
        """The places of a step, by what its tensors hold when a recording is replayed."""
        slots = view.slot_mapping
        every = torch.arange(slots.shape[0], device=slots.device)
        first = torch.zeros_like(every)
        rows = torch.where(slots >= 0, every, first)
        written = slots[rows]
        blocks = torch.div(written, view.block_size, rounding_mode="floor")
        return cls(rows, blocks, written % view.block_size)


class PagedHeads:
    """The half of a backend that keeps keys and values."""

    def kv_layout(self, spec: AttentionSpec, block_size: int, dtype: str) -> KVLayout:
        """K and V of a block lie one behind the other."""
        return KVLayout(block_size * KV_TYPES[dtype].token_bytes(spec))

    def bind(
        self, spec: AttentionSpec, block_size: int, dtype: str, raw: Tensor, params: AttentionParams | None = None
    ) -> PagedLayer:
        """View the layer's bytes as K and V."""
        params = params or AttentionParams()
        shape = (2, block_size, spec.num_kv_heads, spec.head_size)
        both = raw.view(DTYPES[dtype]).unflatten(1, shape)
        keys, values = both.unbind(1)
        return PagedLayer(spec, keys, values, params.sinks, params.slopes)

    def put(self, layer: PagedLayer, k: Tensor, v: Tensor, places: Places) -> None:
        """Write k and v [T, Hkv, D]."""
        where = (places.blocks, places.offsets)
        layer.keys.index_put_(where, k[places.rows].to(layer.keys.dtype))
        layer.values.index_put_(where, v[places.rows].to(layer.values.dtype))
