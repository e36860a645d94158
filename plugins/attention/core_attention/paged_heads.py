"""Paged K and V storage for backends whose attention comes from a library.

Owns: the layout of a block, and writes to it that can be recorded in a graph. Never does: attend.
Called by: the backend `flex`; `fused_heads`, for those that write with the engine's own kernel.

A block holds K [block_size, Hkv, D], then V of the same shape, in the cache's own dtype: the layout that all of these
libraries read.
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
    """An attention layer bound to its cache.

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
    """The slots that a step writes.

    rows: int64 [T], the row written to each slot; a padded row rewrites the first one.
    blocks, offsets: int64 [T], locations of the slots.
    """

    rows: Tensor
    blocks: Tensor
    offsets: Tensor

    @classmethod
    def of(cls, view: BatchView) -> Places:
        """Compute the slots from the step's device tensors, so that a replayed graph uses their current content."""
        slots = view.slot_mapping
        every = torch.arange(slots.shape[0], device=slots.device)
        first = torch.zeros_like(every)
        rows = torch.where(slots >= 0, every, first)
        written = slots[rows]
        blocks = torch.div(written, view.block_size, rounding_mode="floor")
        return cls(rows, blocks, written % view.block_size)


class PagedHeads:
    """Base class that stores keys and values; backends add the attention."""

    def kv_layout(self, spec: AttentionSpec, block_size: int, dtype: str) -> KVLayout:
        """Return the layout: a block's K followed by its V."""
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
