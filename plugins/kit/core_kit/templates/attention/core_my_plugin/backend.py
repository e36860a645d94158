"""The backend: K and V are written to the cache first, then attention reads only the cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from core.api.specs import AttentionSpec, KVLayout
from core_runtime.contracts import BatchView


@dataclass(slots=True)
class Layer:
    """One layer's part of the cache: keys and values [blocks, block_size, Hkv, D], views of memory the core owns."""

    spec: AttentionSpec
    keys: Tensor
    values: Tensor


class Backend:
    """Implements `core_runtime.contracts.AttentionBackend`."""

    name = "my_plugin"
    numerics = "my_plugin-1"

    def kv_layout(self, spec: AttentionSpec, block_size: int, dtype: str) -> KVLayout:
        """K of a block's tokens, then V."""
        item = getattr(torch, dtype).itemsize
        return KVLayout(2 * block_size * spec.num_kv_heads * spec.head_size * item)

    def bind(self, spec: AttentionSpec, block_size: int, dtype: str, raw: Tensor) -> Layer:
        """raw: uint8 [blocks, block_bytes]."""
        cache = raw.view(getattr(torch, dtype)).view(len(raw), 2, block_size, spec.num_kv_heads, spec.head_size)
        return Layer(spec, cache[:, 0], cache[:, 1])

    def build(self, view: BatchView) -> BatchView:
        """Nothing to prepare: the view has all that is needed."""
        return view

    def write(self, handle: Layer, k: Tensor, v: Tensor, metadata: BatchView) -> None:
        """Store k, v [T, Hkv, D] where the step says."""
        block, offset = metadata.slot_mapping // metadata.block_size, metadata.slot_mapping % metadata.block_size
        handle.keys[block, offset] = k.to(handle.keys.dtype)
        handle.values[block, offset] = v.to(handle.values.dtype)

    def forward(self, handle: Layer, q: Tensor, metadata: BatchView, out: Tensor) -> None:
        """out[T, Hq, D], one sequence after the other."""
        spec, start = handle.spec, 0
        group = spec.num_heads // spec.num_kv_heads
        for index, (queries, length) in enumerate(zip(metadata.query_lens, metadata.seq_lens_list, strict=True)):
            blocks = metadata.block_table[index, : -(-length // metadata.block_size)].long()
            k = handle.keys[blocks].flatten(0, 1)[:length].float().repeat_interleave(group, 1)
            v = handle.values[blocks].flatten(0, 1)[:length].float().repeat_interleave(group, 1)
            query = torch.arange(length - queries, length).unsqueeze(1)
            key = torch.arange(length).unsqueeze(0)
            hidden = key > query
            if spec.window is not None:
                hidden |= key <= query - spec.window
            scores = torch.einsum("qhd,khd->hqk", q[start : start + queries].float(), k) * spec.scale
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            out[start : start + queries] = torch.einsum("hqk,khd->qhd", weights, v).to(out.dtype)
            start += queries
