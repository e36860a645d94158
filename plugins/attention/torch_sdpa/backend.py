"""Paged attention over torch's scaled_dot_product_attention.

Owns: the cache layout [num_blocks, 2, block_size, Hkv, D] and the gathering of a sequence's blocks.
Never does: promise equal bits for different batches (it is the reference for values, not for bits).
Called by: the decoder, through the attention contract.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from core.api.specs import AttentionSpec, KVLayout
from core.plugin.contracts import BatchView

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(slots=True)
class LayerHandle:
    """One layer. keys, values: [num_blocks, block_size, Hkv, D] views of the cache."""

    spec: AttentionSpec
    keys: Tensor
    values: Tensor


@dataclass(slots=True)
class StepMetadata:
    """One step. block and offset: int64 [T], where each token's K and V go. ends: first query row of each sequence."""

    view: BatchView
    block: Tensor
    offset: Tensor
    starts: list[int]


class TorchSDPA:
    """The contract's implementation."""

    name = "torch_sdpa"
    numerics = f"torch_sdpa-{torch.__version__.split('+')[0]}"

    def kv_layout(self, spec: AttentionSpec, block_size: int, dtype: str) -> KVLayout:
        """K and V of a block lie side by side."""
        return KVLayout(2 * block_size * spec.num_kv_heads * spec.head_size * DTYPES[dtype].itemsize)

    def bind(self, spec: AttentionSpec, block_size: int, dtype: str, raw: Tensor) -> LayerHandle:
        """View the layer's bytes as K and V."""
        cache = raw.view(DTYPES[dtype]).view(raw.shape[0], 2, block_size, spec.num_kv_heads, spec.head_size)
        return LayerHandle(spec, cache[:, 0], cache[:, 1])

    def build(self, view: BatchView) -> StepMetadata:
        """Split the slot mapping once for all layers."""
        starts = [0]
        for length in view.query_lens:
            starts.append(starts[-1] + length)
        block = torch.div(view.slot_mapping, view.block_size, rounding_mode="floor")
        return StepMetadata(view, block, view.slot_mapping % view.block_size, starts)

    def write(self, handle: LayerHandle, k: Tensor, v: Tensor, metadata: StepMetadata) -> None:
        """Store k, v [T, Hkv, D] at the step's slots."""
        handle.keys[metadata.block, metadata.offset] = k.to(handle.keys.dtype)
        handle.values[metadata.block, metadata.offset] = v.to(handle.values.dtype)

    def forward(self, handle: LayerHandle, q: Tensor, metadata: StepMetadata, out: Tensor) -> None:
        """out[T, Hq, D], one sequence after the other, in the dtype of q (at least that of the cache)."""
        view, spec = metadata.view, handle.spec
        for index, seq_len in enumerate(view.seq_lens_list):
            start, stop = metadata.starts[index], metadata.starts[index + 1]
            first = 0
            if spec.window is not None:
                first = max(0, seq_len - (stop - start) - spec.window + 1) // view.block_size
            num_blocks = (seq_len + view.block_size - 1) // view.block_size
            blocks = view.block_table[index, first:num_blocks].long()
            past = first * view.block_size
            keys = handle.keys[blocks].flatten(0, 1)[: seq_len - past].transpose(0, 1).to(q.dtype)
            values = handle.values[blocks].flatten(0, 1)[: seq_len - past].transpose(0, 1).to(q.dtype)
            queries = q[start:stop].transpose(0, 1)
            bias = _mask(stop - start, seq_len, past, spec.window, q.device)
            out[start:stop] = _attend(queries, keys, values, bias, spec).transpose(0, 1)


def _mask(num_queries: int, seq_len: int, past: int, window: int | None, device: torch.device) -> Tensor | None:
    """Which keys each query sees, bool [num_queries, keys], or None when all do."""
    if num_queries == 1 and (window is None or seq_len - past <= window):
        return None
    query = torch.arange(seq_len - num_queries, seq_len, device=device).unsqueeze(1)
    key = torch.arange(past, seq_len, device=device).unsqueeze(0)
    mask = key <= query
    return mask if window is None else mask & (key > query - window)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, spec: AttentionSpec) -> Tensor:
    """[Hq, Tq, D] from q [Hq, Tq, D], k and v [Hkv, L, D]."""
    if spec.cap is None:
        grouped = F.scaled_dot_product_attention(
            q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), attn_mask=mask, scale=spec.scale, enable_gqa=True
        )
        return grouped[0]
    group = spec.num_heads // spec.num_kv_heads
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = torch.tanh((q @ k.transpose(1, 2)).float() * spec.scale / spec.cap) * spec.cap
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(-1).to(v.dtype) @ v
