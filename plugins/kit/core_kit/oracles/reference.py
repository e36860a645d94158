"""Reference attention in float64, straight from the formula, for comparison with backends.

Owns: the reference and its random test cases. Never does: page anything. Called by: the attention checks, and tests of
backends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from core.api.specs import AttentionSpec, LatentSpec
from core_kit.oracles.levels import as_coded_value, as_turned_key
from core_kit.oracles.padding import NO_PADDING, Padding
from core_runtime.contracts import AttentionParams, BatchView, PlansRecorded

CACHE_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
SCALED_CACHES = {
    "fp8_per_token_head": (448.0, torch.float8_e4m3fn),
    "int8_per_token_head": (127.0, torch.int8),
}
"""By KV dtype with per-token scales: the largest number of its elements, and their type."""
CODED_CACHE = "k8v4_per_token_head"
GROUPED_CACHE = "fp8_ds_mla"
GROUP = 128
"""Numbers of a latent that share a scale in such a cache."""
LAYER_SCALES = {
    "fp8_e4m3": (16.0, 40.0),
    "fp8_e5m2": (0.5, 1.5),
}
"""KV dtypes with one scale of K and one of V per layer, and the scales that `Conversation` needs."""

NAN_BYTE = 0xFF
"""Byte that reads as NaN in every floating-point type when a cache is filled with it."""


PLAIN = AttentionParams()


def as_attention(spec: AttentionSpec | LatentSpec) -> AttentionSpec:
    """Express a latent layer as attention with one key-value head: K is the latent followed by the rotated key, V the
    latent.
    """
    if isinstance(spec, AttentionSpec):
        return spec
    return AttentionSpec(
        num_heads=spec.num_heads,
        num_kv_heads=1,
        head_size=spec.rank + spec.rope_size,
        head_size_v=spec.rank,
        scale=spec.scale,
    )


def layer_params(spec: AttentionSpec, dtype: str) -> AttentionParams:
    """Return uneven values for all parameters that a layer with this KV dtype may have: sinks, slopes, and scales of K
    and V.
    """
    sinks = torch.linspace(-2, 3, spec.num_heads) if spec.sinks else None
    slopes = 0.7 ** torch.arange(1, spec.num_heads + 1) if spec.alibi else None
    k_scale, v_scale = LAYER_SCALES.get(dtype, (1.0, 1.0))
    return AttentionParams(k_scale, v_scale, sinks, slopes)


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    spec: AttentionSpec,
    params: AttentionParams = PLAIN,
    sees_to: Tensor | None = None,
) -> Tensor:
    """Compute causal attention of the last positions, q [Tq, Hq, D], over all of k [L, Hkv, D] and v [L, Hkv, Dv], in
    float64.

    k and v: as read back from the cache. params: only sinks and slopes are used. sees_to: int64 [Tq], last position that
    each query sees; None: its own.
    """
    group = spec.num_heads // spec.num_kv_heads
    k = k.double().repeat_interleave(group, 1)
    v = v.double().repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * spec.scale
    if spec.cap is not None:
        scores = torch.tanh(scores / spec.cap) * spec.cap
    query = torch.arange(len(k) - len(q), len(k)).unsqueeze(1)
    key = torch.arange(len(k)).unsqueeze(0)
    if params.slopes is not None:
        slopes = params.slopes.double().view(-1, 1, 1)
        scores = scores + slopes * (key - query)
    mask = key <= (query if sees_to is None else sees_to.unsqueeze(1))
    if spec.window is not None:
        first = query - query % spec.window if spec.chunked else query - spec.window + 1
        mask &= key >= first
    scores = scores.masked_fill(~mask, -torch.inf)
    if params.sinks is not None:
        sinks = params.sinks.double().view(-1, 1, 1)
        sinks = sinks.expand(-1, len(q), 1)
        scores = torch.cat([scores, sinks], -1)
    weights = scores.softmax(-1)[..., : len(k)]
    return torch.einsum("hqk,khd->qhd", weights, v)


def batch_view(
    query_lens: Sequence[int], seq_lens: Sequence[int], tables: Sequence[Sequence[int]], block_size: int
) -> BatchView:
    """Build a step of sequences with `seq_lens` tokens, of which the last `query_lens` are new. tables: block ids of
    each.
    """
    positions: list[int] = []
    slots: list[int] = []
    for query_len, seq_len, table in zip(query_lens, seq_lens, tables, strict=True):
        for position in range(seq_len - query_len, seq_len):
            block = table[position // block_size]
            positions.append(position)
            slots.append(block * block_size + position % block_size)
    width = max(len(table) for table in tables)
    padded_tables = []
    for table in tables:
        padding = [0] * (width - len(table))
        padded_tables.append([*table, *padding])
    starts = torch.tensor([0, *query_lens], dtype=torch.int32)
    return BatchView(
        num_tokens=sum(query_lens),
        num_seqs=len(query_lens),
        block_size=block_size,
        max_query_len=max(query_lens),
        max_seq_len=max(seq_lens),
        query_lens=list(query_lens),
        seq_lens_list=list(seq_lens),
        cu_seqlens_q=starts.cumsum(0, dtype=torch.int32),
        seq_lens=torch.tensor(list(seq_lens), dtype=torch.int32),
        block_table=torch.tensor(padded_tables, dtype=torch.int32),
        slot_mapping=torch.tensor(slots),
        positions=torch.tensor(positions),
    )


def changed_blocks(raw: Tensor, before: Tensor) -> set[int]:
    """Return the ids of the blocks in which a cache, uint8 [num_blocks, bytes], differs from `before`."""
    changed = (raw != before).any(1)
    return set(changed.nonzero()[:, 0].tolist())


def as_cached(x: Tensor, dtype: str, scale: float = 1.0, *, values: bool = False) -> Tensor:
    """Return x [L, Hkv, D] as read back from a cache of a KV dtype; unchanged for a backend's own dtype.

    scale: of the whole layer; numbers beyond the largest are clamped to it. values: whether x is V rather than K.
    """
    plain = CACHE_DTYPES.get(dtype)
    if dtype in LAYER_SCALES and plain is not None:
        largest = torch.finfo(plain).max
        stored = (x / scale).clamp(-largest, largest).to(plain)
        return stored.float() * scale
    if plain is not None:
        return x.to(plain).float()
    if dtype == CODED_CACHE:
        return as_coded_value(x) if values else as_turned_key(x)
    if dtype not in SCALED_CACHES:
        return x
    largest, narrow = SCALED_CACHES[dtype]
    own_scale = x.abs().amax(-1, keepdim=True) / largest
    scaled = x / own_scale
    stored = scaled.round() if narrow is torch.int8 else scaled.to(narrow).float()
    return stored * own_scale


def as_grouped(c: Tensor) -> Tensor:
    """Return latents [L, 1, R] as read back from a cache whose groups of numbers have a scale each, as FlashMLA stores them."""
    groups = c.unflatten(-1, (-1, GROUP))
    scales = groups.abs().amax(-1, keepdim=True) / 448.0
    stored = (groups / scales).to(torch.float8_e4m3fn).float() * scales
    return stored.to(torch.bfloat16).float().flatten(-2)


@dataclass
class Conversation:
    """The queries, keys and values of one sequence; for latent layers see `as_attention`.

    q: [L, Hq, D].
    k: [L, Hkv, D].
    v: [L, Hkv, Dv].
    held: k and v as read back from the cache.

    The values reveal whether a backend scales 8-bit numbers as the KV dtype demands: with one scale per layer, they
    overflow without it; with per-token scales, those of neighbours differ by a factor of 32.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    held: tuple[Tensor, Tensor]

    @classmethod
    def random(cls, length: int, spec: AttentionSpec | LatentSpec, dtype: str, random: torch.Generator) -> Conversation:
        """Return normal values, of magnitudes that need the scales of the KV dtype."""
        like = as_attention(spec)
        params = layer_params(like, dtype)
        q = torch.randn(length, like.num_heads, like.head_size, generator=random)
        k = torch.randn(length, like.num_kv_heads, like.head_size, generator=random)
        if dtype in LAYER_SCALES:
            q = q / 1000
            k = k * 1000
        scaled = dtype in SCALED_CACHES or dtype in (CODED_CACHE, GROUPED_CACHE)
        sizes = _uneven(length, like.num_kv_heads) if scaled else torch.ones(1)
        if isinstance(spec, LatentSpec):
            c = k[..., : spec.rank] * sizes
            k_pe = k[..., spec.rank :]
            q[..., : spec.rank] /= sizes.max()
            held_c = as_cached(c, dtype, params.k_scale)
            held_pe = as_cached(k_pe, dtype, params.k_scale)
            if dtype == GROUPED_CACHE and not spec.rank % GROUP:
                held_c, held_pe = as_grouped(c), as_cached(k_pe, "bfloat16")
            held_k = torch.cat([held_c, held_pe], -1)
            latent_and_key = torch.cat([c, k_pe], -1)
            return cls(q, latent_and_key, c, (held_k, held_c))
        v = torch.randn(length, like.num_kv_heads, like.head_size_v, generator=random) * sizes
        if dtype in LAYER_SCALES:
            v *= 4000
        held_k = as_cached(k, dtype, params.k_scale)
        held_v = as_cached(v, dtype, params.v_scale, values=True)
        return cls(q, k, v, (held_k, held_v))


def _uneven(length: int, heads: int) -> Tensor:
    """Return [L, Hkv, 1] of alternating 1 and 32, along tokens and along heads."""
    token = torch.arange(length).unsqueeze(1)
    head = torch.arange(heads)
    exponent = (token + head) % 2
    return 32.0 ** exponent.unsqueeze(-1)


class PagedRun:
    """A test run of conversations in one cache of a backend, with shuffled blocks, and NaN in everything unwritten.

    changed: which of q, k and v a call of the backend has modified.
    padding: of every step.
    sees_to: for each conversation int64 [L], last position that each of its tokens sees; empty: its own.
    apart: bytes before and after each block that belong to other layers.
    """

    sees_to: Sequence[Tensor] = ()

    def __init__(
        self,
        backend: Any,
        spec: AttentionSpec | LatentSpec,
        block_size: int,
        dtype: str,
        conversations: Sequence[Conversation],
        random: torch.Generator,
        padding: Padding = NO_PADDING,
        apart: int = 0,
    ) -> None:
        self.backend = backend
        self.spec = spec
        self.block_size = block_size
        self.padding = padding
        self.conversations = list(conversations)
        self.changed: set[str] = set()
        needed = [-(-len(c.k) // block_size) for c in conversations]
        num_blocks = sum(needed)
        shuffled = torch.randperm(num_blocks, generator=random) + 1  # no sequence owns block 0
        self.tables = [table.tolist() for table in shuffled.flip(0).split(needed)]
        size = backend.kv_layout(spec, block_size, dtype).block_bytes
        self.whole = torch.zeros(num_blocks + 2, size + 2 * apart, dtype=torch.uint8)
        self.raw = self.whole[:, apart : apart + size]
        like = as_attention(spec)
        self.params = layer_params(like, dtype)
        has_params = like.sinks or like.alibi or dtype in LAYER_SCALES
        if has_params:  # backends that support none of them may lack this argument
            self.handle = backend.bind(spec, block_size, dtype, self.raw, self.params)
        else:
            self.handle = backend.bind(spec, block_size, dtype, self.raw)
        self.whole.fill_(NAN_BYTE)

    def step(self, query_lens: Sequence[int], seq_lens: Sequence[int]) -> list[Tensor]:
        """Write the new tokens of each sequence and attend with them; sequences without new tokens are left out."""
        alive = [i for i, n in enumerate(query_lens) if n]
        new_lens = [query_lens[i] for i in alive]
        ends = [seq_lens[i] for i in alive]
        tables = [self.tables[i] for i in alive]
        view = batch_view(new_lens, ends, tables, self.block_size)
        if self.sees_to:
            seen = [self.sees_to[i][seq_lens[i] - query_lens[i] : seq_lens[i]] for i in alive]
            view.sees_to = torch.cat(seen).int()
        padded = self.padding.view(view)
        if self.padding.bare and isinstance(self.backend, PlansRecorded):
            self.backend.plan_recorded(view, padded)
        metadata = self.backend.build(padded)
        given = {}
        for name in ("k", "v", "q"):
            parts = []
            for i in alive:
                whole = getattr(self.conversations[i], name)
                stop = seq_lens[i]
                start = stop - query_lens[i]
                parts.append(whole[start:stop])
            given[name] = self.padding.tensor(torch.cat(parts))
        before = {name: tensor.clone() for name, tensor in given.items()}
        k = given["k"]
        v = given["v"]
        q = given["q"]
        self.write(k, v, metadata)
        out = torch.full((len(q), self.spec.num_heads, v.shape[-1]), torch.nan)
        if isinstance(self.spec, LatentSpec):
            latent, rotated = q.split([self.spec.rank, self.spec.rope_size], -1)
            self.backend.forward_latent(self.handle, latent, rotated, metadata, out)
        else:
            self.backend.forward(self.handle, q, metadata, out)
        for name, tensor in given.items():
            if not torch.equal(tensor.nan_to_num(), before[name].nan_to_num()):
                self.changed.add(name)
        return list(out[: sum(new_lens)].split(new_lens))

    def write(self, k: Tensor, v: Tensor, metadata: Any) -> None:
        """Store k and v of a `Conversation`; for a latent layer, the latent and the rotated key contained in k."""
        if isinstance(self.spec, LatentSpec):
            latent = v[:, 0]
            rotated = k[:, 0, self.spec.rank :]
            self.backend.write_latent(self.handle, latent, rotated, metadata)
        else:
            self.backend.write(self.handle, k, v, metadata)

    def all(self, chunk: int = 0) -> list[Tensor]:
        """Run every sequence to its end, at most `chunk` tokens of each per step (0: all at once)."""
        lengths = [len(c.k) for c in self.conversations]
        done = [0] * len(lengths)
        outs: list[list[Tensor]] = [[] for _ in lengths]
        while done != lengths:
            query_lens = []
            for i, length in enumerate(lengths):
                query_len = min(chunk or length, length - done[i])
                done[i] += query_len
                query_lens.append(query_len)
            alive = [i for i, n in enumerate(query_lens) if n]
            parts = self.step(query_lens, done)
            for i, part in zip(alive, parts, strict=True):
                outs[i].append(part)
        return [torch.cat(parts) for parts in outs]
