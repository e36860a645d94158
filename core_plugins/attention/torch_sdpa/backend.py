"""Paged attention over torch's scaled_dot_product_attention, and the way to layers with a state (`states.py`).

Owns: the gathering of a sequence's blocks and the softmax over them; the cache itself is `cache.py`.
Never does: promise equal bits for different batches, unless it is made with `by_query`.
Called by: the decoder, through the attention contract.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from core.api.specs import KV_TYPES, AttentionSpec, KVLayout, LatentSpec, StateSpec
from core.plugin.contracts import AttentionParams, BatchView
from core_plugins.attention.torch_sdpa.cache import StoredHeads
from core_plugins.attention.torch_sdpa.latent import LatentLayer
from core_plugins.attention.torch_sdpa.states import OPS, ShortConv, StateMetadata


@dataclass(slots=True)
class LayerHandle:
    """One layer. sinks, slopes: [Hq] or None."""

    spec: AttentionSpec
    keys: StoredHeads
    values: StoredHeads
    sinks: Tensor | None
    slopes: Tensor | None


@dataclass(slots=True)
class StepMetadata:
    """One step.

    rows: int64 [W], rows whose K and V are written; None: all of them.
    block, offset: int64 [W], where they go.
    starts: first query row of each sequence, and behind them the number of live rows.
    """

    view: BatchView
    rows: Tensor | None
    block: Tensor
    offset: Tensor
    starts: list[int]

    def written(self, x: Tensor) -> Tensor:
        """The rows of x [T, ...] that are written."""
        return x if self.rows is None else x[self.rows]


class TorchSDPA:
    """The contract's implementation.

    by_query: attend from one query at a time to just the keys that it sees, in float32. Shapes then depend on the query's
    position alone, hence bits neither on chunks and blocks nor on other sequences.
    """

    name = "torch_sdpa"
    numerics = f"torch_sdpa-{torch.__version__.split('+')[0]}"

    def __init__(self, by_query: bool = False) -> None:
        self.by_query = by_query

    def kv_layout(self, spec: AttentionSpec | LatentSpec, block_size: int, dtype: str) -> KVLayout:
        """K and V (or latents and keys) of a block lie side by side, then their scales where the type has them."""
        return KVLayout(block_size * KV_TYPES[dtype].token_bytes(spec))

    def bind(
        self,
        spec: AttentionSpec | LatentSpec,
        block_size: int,
        dtype: str,
        raw: Tensor,
        params: AttentionParams | None = None,
    ) -> LayerHandle | LatentLayer:
        """View the layer's bytes as K and V, or as latents and keys."""
        params = params or AttentionParams()
        if isinstance(spec, LatentSpec):
            return LatentLayer(spec, block_size, dtype, raw, params)
        heads = spec.num_kv_heads
        sizes = [
            block_size * heads * width * KV_TYPES[dtype].item_bytes for width in (spec.head_size, spec.head_size_v)
        ]
        scales = 4 * block_size * heads if KV_TYPES[dtype].scaled else 0
        k, v, k_scales, v_scales = raw.split([*sizes, scales, scales], dim=1)
        shape = (raw.shape[0], block_size, heads)
        return LayerHandle(
            spec,
            StoredHeads(k, k_scales, (*shape, spec.head_size), dtype, params.k_scale),
            StoredHeads(v, v_scales, (*shape, spec.head_size_v), dtype, params.v_scale),
            params.sinks,
            params.slopes,
        )

    def build(self, view: BatchView) -> StepMetadata:
        """Split the slot mapping once for all layers."""
        starts = [0]
        for length in view.query_lens:
            starts.append(starts[-1] + length)
        slots, rows = view.slot_mapping, None
        if view.num_tokens and int(slots.min()) < 0:
            rows = (slots >= 0).nonzero()[:, 0]
            slots = slots[rows]
        block = torch.div(slots, view.block_size, rounding_mode="floor")
        return StepMetadata(view, rows, block, slots % view.block_size, starts)

    def write(self, handle: LayerHandle, k: Tensor, v: Tensor, metadata: StepMetadata) -> None:
        """Store k [T, Hkv, D] and v [T, Hkv, D_v] at the step's slots."""
        handle.keys.write(metadata.block, metadata.offset, metadata.written(k))
        handle.values.write(metadata.block, metadata.offset, metadata.written(v))

    def forward(self, handle: LayerHandle, q: Tensor, metadata: StepMetadata, out: Tensor) -> None:
        """out[T, Hq, D_v], one sequence after the other, in the dtype of q (at least that of the cache)."""
        view, spec = metadata.view, handle.spec
        for index, seq_len in enumerate(view.seq_lens_list):
            start, stop = metadata.starts[index], metadata.starts[index + 1]
            if start == stop:
                continue
            first = 0
            if spec.window is not None:
                first = max(0, seq_len - (stop - start) - spec.window + 1) // view.block_size
            num_blocks = (seq_len + view.block_size - 1) // view.block_size
            blocks = view.block_table[index, first:num_blocks].long()
            past = first * view.block_size
            if self.by_query:
                keys = handle.keys.read(blocks, torch.float32)
                values = handle.values.read(blocks, torch.float32)
                _by_query(
                    q[start:stop], keys, values, range(seq_len - stop + start, seq_len), past, handle, out[start:stop]
                )
                continue
            keys = handle.keys.read(blocks, q.dtype)[: seq_len - past].transpose(0, 1)
            values = handle.values.read(blocks, q.dtype)[: seq_len - past].transpose(0, 1)
            queries = q[start:stop].transpose(0, 1)
            mask = _mask(stop - start, seq_len, past, spec.window, q.device)
            plain = spec.cap is None and handle.sinks is None and handle.slopes is None
            attend = _fused if plain else _explicit
            out[start:stop] = attend(queries, keys, values, mask, handle).transpose(0, 1)

    def write_latent(self, handle: LatentLayer, c: Tensor, k_pe: Tensor, metadata: StepMetadata) -> None:
        """Store c [T, R] and k_pe [T, Dr] at the step's slots."""
        handle.write(metadata.block, metadata.offset, metadata.written(c), metadata.written(k_pe))

    def forward_latent(
        self, handle: LatentLayer, q_latent: Tensor, q_pe: Tensor, metadata: StepMetadata, out: Tensor
    ) -> None:
        """out[T, H, R], one sequence after the other, in the dtype of q_latent (at least that of the cache)."""
        view = metadata.view
        attend, dtype = (handle.attend_by_query, torch.float32) if self.by_query else (handle.attend, q_latent.dtype)
        for index, seq_len in enumerate(view.seq_lens_list):
            mine = slice(metadata.starts[index], metadata.starts[index + 1])
            if mine.start == mine.stop:
                continue
            blocks = view.block_table[index, : -(-seq_len // view.block_size)].long()
            c, k_pe = handle.read(blocks, dtype)
            attend(q_latent[mine], q_pe[mine], c[:seq_len], k_pe[:seq_len], out[mine])

    def state_layout(self, spec: StateSpec, dtype: str) -> int:
        """The numbers of the state, in float32."""
        return spec.state_bytes

    def bind_state(self, spec: StateSpec, dtype: str, raw: Tensor, params: Mapping[str, Tensor]) -> ShortConv:
        """The op, on the layer's bytes."""
        return OPS[spec.op](spec, raw, params)

    def build_state(self, view: BatchView) -> StateMetadata:
        """Which sequence each row belongs to."""
        return StateMetadata(view)

    def forward_state(self, handle: ShortConv, inputs: Tensor, metadata: StateMetadata, out: Tensor) -> None:
        """out [T, W'] of inputs [T, W], for all sequences at once."""
        handle.forward(inputs, metadata, out)


def _by_query(q: Tensor, k: Tensor, v: Tensor, positions: range, past: int, handle: LayerHandle, out: Tensor) -> None:
    """out[Tq, Hq, D_v] of q [Tq, Hq, D] at `positions`, with k and v [L, Hkv, ...] from position `past` on."""
    window = handle.spec.window
    for row, position in enumerate(positions):
        first = 0 if window is None else max(0, position - window + 1)
        seen = slice(first - past, position - past + 1)
        query = q[row].float().unsqueeze(1).clone(memory_format=torch.contiguous_format)
        keys, values = (x[seen].transpose(0, 1).clone(memory_format=torch.contiguous_format) for x in (k, v))
        out[row] = _explicit(query, keys, values, None, handle)[:, 0]


def _mask(num_queries: int, seq_len: int, past: int, window: int | None, device: torch.device) -> Tensor | None:
    """Which keys each query sees, bool [num_queries, keys], or None when all do."""
    if num_queries == 1 and (window is None or seq_len - past <= window):
        return None
    query = torch.arange(seq_len - num_queries, seq_len, device=device).unsqueeze(1)
    key = torch.arange(past, seq_len, device=device).unsqueeze(0)
    mask = key <= query
    return mask if window is None else mask & (key > query - window)


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, handle: LayerHandle) -> Tensor:
    """[Hq, Tq, D_v] from q [Hq, Tq, D], k [Hkv, L, D] and v [Hkv, L, D_v]."""
    scale = handle.spec.scale
    return F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask, scale=scale, enable_gqa=True)[0]


def _explicit(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, handle: LayerHandle) -> Tensor:
    """The same with what the fused operation lacks: soft cap, slopes and sinks."""
    spec = handle.spec
    group = spec.num_heads // spec.num_kv_heads
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = (q @ k.transpose(1, 2)).float() * spec.scale
    if spec.cap is not None:
        scores = torch.tanh(scores / spec.cap) * spec.cap
    if handle.slopes is not None:
        queries, keys = scores.shape[1:]
        ahead = torch.arange(keys, device=q.device) - torch.arange(keys - queries, keys, device=q.device).unsqueeze(1)
        scores = scores + handle.slopes.to(scores).view(-1, 1, 1) * ahead
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if handle.sinks is None:
        return scores.softmax(-1).to(v.dtype) @ v
    sinks = handle.sinks.to(scores).view(-1, 1, 1).expand(-1, scores.shape[1], 1)
    return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1].to(v.dtype) @ v
