"""Paged attention over torch's scaled_dot_product_attention, and the entry to layers with a recurrent state
(`states/`).

Owns: the gathering of a sequence's blocks and the softmax over them; the cache itself is `cache.py`.
Never does: guarantee equal bits for different batches, unless built with `by_query`.
Called by: the decoder, through the attention contract.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from core.api.specs import KV_TYPES, AttentionSpec, KVLayout, LatentSpec, StateSpec
from core_attention.torch_sdpa.cache import SCALE_BYTES, StoredHeads, aligned
from core_attention.torch_sdpa.latent import LatentLayer
from core_attention.torch_sdpa.states import OPS, StateLayer
from core_attention.torch_sdpa.states.cross_attention import CrossAttention
from core_attention.torch_sdpa.states.step import StateMetadata
from core_attention.torch_sdpa.states.stored import StoredStates
from core_runtime.contracts import AttentionParams, BatchView


@dataclass(slots=True)
class LayerHandle:
    """An attention layer bound to its cache.

    spec: its sizes.
    block_size: of its cache.
    keys, values: its part of the cache.
    sinks, slopes: [Hq] or None.
    """

    spec: AttentionSpec
    block_size: int
    keys: StoredHeads
    values: StoredHeads
    sinks: Tensor | None
    slopes: Tensor | None


@dataclass(slots=True)
class StepMetadata:
    """The metadata of one step.

    view: the batch.
    rows: int64 [W], rows whose K and V are written; None: all of them.
    block, offset: int64 [W], their locations.
    starts: first query row of each sequence, followed by the number of live rows.
    sees_to: `BatchView.sees_to` as a list, or None.
    """

    view: BatchView
    rows: Tensor | None
    block: Tensor
    offset: Tensor
    starts: list[int]
    sees_to: list[int] | None

    def written(self, x: Tensor) -> Tensor:
        """Return the rows of x [T, ...] that are written to the cache."""
        return x if self.rows is None else x[self.rows]


@dataclass(frozen=True, slots=True)
class Tail:
    """The last keys of a sequence that are stored outside its block table.

    rows: int64 [n], positions among the keys read.
    slots: int64 [n], locations in the cache.
    block_size: of the cache.
    """

    rows: Tensor
    slots: Tensor
    block_size: int

    @classmethod
    def of(cls, view: BatchView, index: int, past: int) -> Tail | None:
        """Return the tail of a sequence whose keys are read from position `past` on; None when the block table covers
        all keys.
        """
        if view.tails is None:
            return None
        tail = view.tails[index].long()
        depth = len(tail)
        first = view.seq_lens_list[index] - depth
        rows = torch.arange(first, first + depth, device=tail.device) - past
        elsewhere = (tail >= 0) & (rows >= 0)
        return cls(rows[elsewhere], tail[elsewhere], view.block_size)

    def put(self, read: Tensor, stored: StoredHeads) -> None:
        """Replace the tail's rows in `read`, [L, Hkv, D], in place."""
        read[self.rows] = stored.read_slots(self.slots, self.block_size, read.dtype)


class TorchSDPA:
    """Implementation of the attention contract.

    by_query: attend with one query at a time over exactly the keys that it sees, in float32. Shapes then depend on the
    query's position alone, so the bits depend neither on chunks and blocks nor on other sequences.
    """

    name = "torch_sdpa"
    moves_states = True
    numerics = f"torch_sdpa-{torch.__version__.split('+')[0]}"

    def __init__(self, by_query: bool = False) -> None:
        self.by_query = by_query

    def kv_layout(self, spec: AttentionSpec | LatentSpec, block_size: int, dtype: str) -> KVLayout:
        """Return the layout: K and V (or latents and keys) of a block, then their scales where the type has them."""
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
        kv_type = KV_TYPES[dtype]
        num_blocks = raw.shape[0]
        heads = spec.num_kv_heads
        num_heads = block_size * heads
        k_bytes = num_heads * spec.head_size * kv_type.item_bytes
        v_bytes = num_heads * spec.head_size_v * kv_type.item_bytes // kv_type.packed
        scale_bytes = num_heads * SCALE_BYTES if kv_type.scaled else 0
        sizes = [k_bytes, v_bytes, scale_bytes, scale_bytes]
        k, v, k_scales, v_scales = raw.split(sizes, dim=1)
        k_shape = (num_blocks, block_size, heads, spec.head_size)
        v_shape = (num_blocks, block_size, heads, spec.head_size_v)
        keys = StoredHeads(k, k_scales, k_shape, dtype, params.k_scale)
        values = StoredHeads(v, v_scales, v_shape, dtype, params.v_scale, kv_type.packed)
        return LayerHandle(spec, block_size, keys, values, params.sinks, params.slopes)

    def build(self, view: BatchView) -> StepMetadata:
        """Split the slot mapping into blocks and offsets, once for all layers."""
        starts = [0]
        for length in view.query_lens:
            starts.append(starts[-1] + length)
        slots = view.slot_mapping
        rows = None
        if view.num_tokens and int(slots.min()) < 0:
            rows = (slots >= 0).nonzero()[:, 0]
            slots = slots[rows]
        block = torch.div(slots, view.block_size, rounding_mode="floor")
        offset = slots % view.block_size
        sees_to = None if view.sees_to is None else view.sees_to.tolist()
        return StepMetadata(view, rows, block, offset, starts, sees_to)

    def write(self, handle: LayerHandle, k: Tensor, v: Tensor, metadata: StepMetadata) -> None:
        """Store k [T, Hkv, D] and v [T, Hkv, D_v] at the step's slots."""
        handle.keys.write(metadata.block, metadata.offset, metadata.written(k))
        handle.values.write(metadata.block, metadata.offset, metadata.written(v))

    def forward(self, handle: LayerHandle, q: Tensor, metadata: StepMetadata, out: Tensor) -> None:
        """Compute out[T, Hq, D_v], one sequence after another, in the dtype of q (at least that of the cache)."""
        view = metadata.view
        block_size = view.block_size
        attend = _by_query if self.by_query else _together
        read_dtype = torch.float32 if self.by_query else q.dtype
        for index, seq_len in enumerate(view.seq_lens_list):
            begin = metadata.starts[index]
            end = metadata.starts[index + 1]
            if begin == end:
                continue
            first_position = seq_len - (end - begin)
            first_block = handle.spec.first_key(first_position) // block_size
            num_blocks = -(-seq_len // block_size)
            blocks = view.block_table[index, first_block:num_blocks].long()
            past = first_block * block_size
            keys = handle.keys.read(blocks, read_dtype)
            values = handle.values.read(blocks, read_dtype)
            tail = Tail.of(view, index, past)
            if tail is not None:
                tail.put(keys, handle.keys)
                tail.put(values, handle.values)
            seen = range(first_position, seq_len) if metadata.sees_to is None else metadata.sees_to[begin:end]
            attend(q[begin:end], keys[: seq_len - past], values[: seq_len - past], seen, past, handle, out[begin:end])

    def write_latent(self, handle: LatentLayer, c: Tensor, k_pe: Tensor, metadata: StepMetadata) -> None:
        """Store c [T, R] and k_pe [T, Dr] at the step's slots."""
        handle.write(metadata.block, metadata.offset, metadata.written(c), metadata.written(k_pe))

    def forward_latent(
        self, handle: LatentLayer, q_latent: Tensor, q_pe: Tensor, metadata: StepMetadata, out: Tensor
    ) -> None:
        """Compute out[T, H, R], one sequence after another, in the dtype of q_latent (at least that of the cache)."""
        attend = handle.attend_by_query if self.by_query else handle.attend
        dtype = torch.float32 if self.by_query else q_latent.dtype
        for rows, (c, k_pe) in _sequences(metadata, (handle.latents, handle.keys), dtype):
            attend(q_latent[rows], q_pe[rows], c, k_pe, out[rows])

    def write_index(self, handle: LatentLayer, k: Tensor, metadata: StepMetadata) -> None:
        """Store the keys of the layer's index, k [T, Di], at the step's slots."""
        assert handle.index is not None, "the layer has no index"
        handle.index.stored.write(metadata.block, metadata.offset, metadata.written(k).unsqueeze(1))

    def choose(self, handle: LatentLayer, q: Tensor, weights: Tensor, metadata: StepMetadata, out: Tensor) -> None:
        """Write the chosen positions of each row to out, int32 [T, top_k]; see `ChoosesKeys`."""
        assert handle.index is not None, "the layer has no index"
        for rows, (keys,) in _sequences(metadata, (handle.index.stored,), torch.float32):
            handle.index.choose(q[rows], weights[rows], keys, out[rows])

    def forward_chosen(
        self, handle: LatentLayer, q_latent: Tensor, q_pe: Tensor, chosen: Tensor, metadata: StepMetadata, out: Tensor
    ) -> None:
        """Compute `forward_latent` over the chosen keys alone."""
        dtype = torch.float32 if self.by_query else q_latent.dtype
        for rows, (c, k_pe) in _sequences(metadata, (handle.latents, handle.keys), dtype):
            queries = q_latent[rows], q_pe[rows]
            handle.attend_chosen(*queries, c, k_pe, chosen[rows], out[rows], by_head=self.by_query)

    def move(self, handle: LayerHandle | LatentLayer, sources: Tensor, targets: Tensor) -> None:
        """Copy slots, int64 [n], to other slots."""
        if isinstance(handle, LatentLayer):
            handle.move(sources, targets)
            return
        handle.keys.move(sources, targets, handle.block_size)
        handle.values.move(sources, targets, handle.block_size)

    def state_layout(self, spec: StateSpec, dtype: str) -> int:
        """Return the bytes of a state."""
        return spec.bytes_in(dtype)

    def bind_state(self, spec: StateSpec, dtype: str, raw: Tensor, params: Mapping[str, Tensor]) -> StateLayer:
        """Bind an op to the layer's bytes."""
        return OPS[spec.op](spec, StoredStates(spec, dtype, raw), params)

    def build_state(self, view: BatchView) -> StateMetadata:
        """Describe, once per step, the sequence of each row."""
        return StateMetadata(view)

    def forward_state(self, handle: StateLayer, inputs: Tensor, metadata: StateMetadata, out: Tensor) -> None:
        """Compute out [T, W'] of inputs [T, W] for all sequences at once."""
        handle.forward(inputs, metadata, out)

    def fill_state(self, handle: StateLayer, blocks: Tensor, rows: Tensor) -> None:
        """Write the state that an encoder's rows give to its blocks."""
        assert isinstance(handle, CrossAttention), "other ops have states that their tokens write"
        handle.fill(blocks, rows)


def _sequences(
    metadata: StepMetadata, stored: Sequence[StoredHeads], dtype: torch.dtype
) -> Iterator[tuple[slice, list[Tensor]]]:
    """Yield the rows of each sequence of a step, and what is stored of all its tokens, each [L, D]."""
    view = metadata.view
    for index, seq_len in enumerate(view.seq_lens_list):
        begin = metadata.starts[index]
        end = metadata.starts[index + 1]
        if begin == end:
            continue
        num_blocks = -(-seq_len // view.block_size)
        blocks = view.block_table[index, :num_blocks].long()
        tail = Tail.of(view, index, 0)
        found = []
        for each in stored:
            read = each.read(blocks, dtype)
            if tail is not None:
                tail.put(read, each)
            found.append(read[:seq_len, 0])
        yield slice(begin, end), found


def _together(
    q: Tensor, k: Tensor, v: Tensor, sees_to: Sequence[int], past: int, handle: LayerHandle, out: Tensor
) -> None:
    """Compute out[Tq, Hq, D_v] of q [Tq, Hq, D], the last tokens of a sequence, with k and v [L, Hkv, ...] from position
    `past` on. sees_to: last position that each query of a decoder sees.
    """
    spec = handle.spec
    queries = q.transpose(0, 1)
    keys = k.transpose(0, 1)
    values = v.transpose(0, 1)
    mask = _mask(sees_to, past + len(k), past, spec, q.device)
    plain = spec.cap is None and handle.sinks is None and handle.slopes is None
    attend = _fused if plain else _explicit
    by_head = attend(queries, keys, values, mask, handle)
    out[:] = by_head.transpose(0, 1)


def _by_query(
    q: Tensor, k: Tensor, v: Tensor, sees_to: Sequence[int], past: int, handle: LayerHandle, out: Tensor
) -> None:
    """Compute the same, one query at a time over exactly the keys that it sees, at aligned addresses."""
    seq_len = past + len(k)
    for row, last in enumerate(sees_to):
        first, stop = _seen(handle.spec, seq_len - len(sees_to) + row, last, seq_len)
        seen = slice(first - past, stop - past)
        query = aligned(q[row].float().unsqueeze(1))
        keys = aligned(k[seen].transpose(0, 1))
        values = aligned(v[seen].transpose(0, 1))
        by_head = _explicit(query, keys, values, None, handle)
        out[row] = by_head[:, 0]


def _seen(spec: AttentionSpec, position: int, last: int, seq_len: int) -> tuple[int, int]:
    """Return the first key that a query sees, and one past the last. last: position up to which one of a decoder sees."""
    if spec.causal:
        return spec.first_key(position), last + 1
    if spec.window is None:
        return 0, seq_len
    reach = spec.window // 2
    return max(0, position - reach), min(seq_len, position + reach + 1)


def _mask(sees_to: Sequence[int], seq_len: int, past: int, spec: AttentionSpec, device: torch.device) -> Tensor | None:
    """Return the mask, bool [queries, keys], or None when every query sees all keys."""
    num_queries = len(sees_to)
    if not spec.causal and spec.window is None:
        return None
    if spec.causal and num_queries == 1 and spec.first_key(seq_len - 1) <= past:
        return None
    query = torch.arange(seq_len - num_queries, seq_len, device=device).unsqueeze(1)
    key = torch.arange(past, seq_len, device=device).unsqueeze(0)
    if not spec.causal and spec.window is not None:
        return (key - query).abs() <= spec.window // 2
    mask = key <= torch.tensor(sees_to, device=device).unsqueeze(1)
    if spec.window is None:
        return mask
    first = query - query % spec.window if spec.chunked else query - spec.window + 1
    mask &= key >= first
    return mask


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, handle: LayerHandle) -> Tensor:
    """Compute [Hq, Tq, D_v] from q [Hq, Tq, D], k [Hkv, L, D] and v [Hkv, L, D_v]."""
    batch = F.scaled_dot_product_attention(
        q[None], k[None], v[None], attn_mask=mask, scale=handle.spec.scale, enable_gqa=True
    )
    return batch[0]


def _explicit(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, handle: LayerHandle) -> Tensor:
    """Compute attention with the features that the fused operation lacks: soft cap, slopes and sinks."""
    spec = handle.spec
    group = spec.num_heads // spec.num_kv_heads
    k = k.repeat_interleave(group, 0)
    v = v.repeat_interleave(group, 0)
    scores = (q @ k.transpose(1, 2)).float() * spec.scale
    if spec.cap is not None:
        scores = torch.tanh(scores / spec.cap) * spec.cap
    if handle.slopes is not None:
        num_queries, num_keys = scores.shape[1:]
        key = torch.arange(num_keys, device=q.device)
        query = torch.arange(num_keys - num_queries, num_keys, device=q.device).unsqueeze(1)
        slopes = handle.slopes.to(scores).view(-1, 1, 1)
        scores = scores + slopes * (key - query)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if handle.sinks is None:
        weights = scores.softmax(-1).to(v.dtype)
        return weights @ v
    # A sink is one more key whose value is zero: it takes weight, and its column is dropped.
    num_queries = scores.shape[1]
    sinks = handle.sinks.to(scores).view(-1, 1, 1)
    sinks = sinks.expand(-1, num_queries, 1)
    weights = torch.cat([scores, sinks], -1).softmax(-1)
    weights = weights[..., :-1].to(v.dtype)
    return weights @ v
