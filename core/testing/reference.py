"""Attention as its formula says, in float64: what backends are compared with.

Owns: the reference and the random cases around it. Never does: page anything. Called by: the attention checks, and
whoever tests a backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from core.api.specs import AttentionSpec, LatentSpec
from core.plugin.contracts import AttentionParams, BatchView
from core.testing.padding import NO_PADDING, Padding

CACHE_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
SCALED_CACHES = {"fp8_per_token_head": (448.0, torch.float8_e4m3fn), "int8_per_token_head": (127.0, torch.int8)}
"""By KV dtype: the largest number of its elements, of which each token and head has a scale, and their type."""
LAYER_SCALES = {"fp8_e4m3": (16.0, 40.0), "fp8_e5m2": (0.5, 1.5)}
"""KV dtypes of which a layer has one scale of K and one of V, and the scales that `Conversation` needs."""

NAN_BYTE = 0xFF
"""A cache filled with it holds NaN in every floating-point type."""


PLAIN = AttentionParams()


def as_attention(spec: AttentionSpec | LatentSpec) -> AttentionSpec:
    """A latent layer is attention with one key-value head: K is the latent and behind it the rotated key, V the latent."""
    if isinstance(spec, AttentionSpec):
        return spec
    return AttentionSpec(spec.num_heads, 1, spec.rank + spec.rope_size, spec.rank, spec.scale)


def layer_params(spec: AttentionSpec, dtype: str) -> AttentionParams:
    """Uneven numbers for whatever a layer with this KV dtype may bring: sinks, slopes, and scales of K and of V."""
    sinks = torch.linspace(-2, 3, spec.num_heads) if spec.sinks else None
    slopes = 0.7 ** torch.arange(1, spec.num_heads + 1) if spec.alibi else None
    return AttentionParams(*LAYER_SCALES.get(dtype, (1.0, 1.0)), sinks, slopes)


def dense_attention(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, params: AttentionParams = PLAIN) -> Tensor:
    """Causal attention of the last positions, q [Tq, Hq, D], over all of k [L, Hkv, D] and v [L, Hkv, Dv], in float64.

    k and v as the cache gives them back; of `params` sinks and slopes count.
    """
    group = spec.num_heads // spec.num_kv_heads
    k, v = k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * spec.scale
    if spec.cap is not None:
        scores = torch.tanh(scores / spec.cap) * spec.cap
    query = torch.arange(len(k) - len(q), len(k)).unsqueeze(1)
    key = torch.arange(len(k)).unsqueeze(0)
    if params.slopes is not None:
        scores = scores + params.slopes.double().view(-1, 1, 1) * (key - query)
    mask = key <= query
    if spec.window is not None:
        mask &= key > query - spec.window
    scores = scores.masked_fill(~mask, -torch.inf)
    if params.sinks is not None:
        sinks = params.sinks.double().view(-1, 1, 1).expand(-1, len(q), 1)
        scores = torch.cat([scores, sinks], -1)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., : len(k)], v)


def batch_view(
    query_lens: Sequence[int], seq_lens: Sequence[int], tables: Sequence[Sequence[int]], block_size: int
) -> BatchView:
    """A step of sequences of `seq_lens` tokens, the last `query_lens` of each being new. tables: block ids of each."""
    positions = [p for n, s in zip(query_lens, seq_lens, strict=True) for p in range(s - n, s)]
    owner = [i for i, n in enumerate(query_lens) for _ in range(n)]
    slots = [tables[i][p // block_size] * block_size + p % block_size for i, p in zip(owner, positions, strict=True)]
    width = max(len(table) for table in tables)
    return BatchView(
        num_tokens=sum(query_lens),
        num_seqs=len(query_lens),
        block_size=block_size,
        max_query_len=max(query_lens),
        max_seq_len=max(seq_lens),
        query_lens=list(query_lens),
        seq_lens_list=list(seq_lens),
        cu_seqlens_q=torch.tensor([0, *query_lens], dtype=torch.int32).cumsum(0, dtype=torch.int32),
        seq_lens=torch.tensor(list(seq_lens), dtype=torch.int32),
        block_table=torch.tensor([[*table, *[0] * (width - len(table))] for table in tables], dtype=torch.int32),
        slot_mapping=torch.tensor(slots),
        positions=torch.tensor(positions),
    )


def as_cached(x: Tensor, dtype: str, scale: float = 1.0) -> Tensor:
    """x [L, Hkv, D] as a cache of a KV dtype gives it back; unchanged for a dtype that is a backend's own.

    scale: of the whole layer; numbers beyond the largest are held as the largest.
    """
    plain = CACHE_DTYPES.get(dtype)
    if dtype in LAYER_SCALES and plain is not None:
        most = torch.finfo(plain).max
        return (x / scale).clamp(-most, most).to(plain).float() * scale
    if plain is not None:
        return x.to(plain).float()
    if dtype not in SCALED_CACHES:
        return x
    largest, narrow = SCALED_CACHES[dtype]
    scale = x.abs().amax(-1, keepdim=True) / largest
    held = (x / scale).round() if narrow is torch.int8 else (x / scale).to(narrow).float()
    return held * scale


@dataclass
class Conversation:
    """One sequence: q [L, Hq, D], k [L, Hkv, D], v [L, Hkv, Dv]; held: k and v as the cache gives them back.

    For latent layers see `as_attention`. Eight bits must be used as the KV dtype says, else they hold something else: with
    one scale a layer, values are too large for it without their scale; with a scale a token and head, values of neighbours
    differ 32 times.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    held: tuple[Tensor, Tensor]

    @classmethod
    def random(cls, length: int, spec: AttentionSpec | LatentSpec, dtype: str, random: torch.Generator) -> Conversation:
        """Normal values, of sizes that need the scales of the KV dtype."""
        like = as_attention(spec)
        params = layer_params(like, dtype)
        q = torch.randn(length, like.num_heads, like.head_size, generator=random)
        k = torch.randn(length, like.num_kv_heads, like.head_size, generator=random)
        if dtype in LAYER_SCALES:
            q, k = q / 1000, k * 1000
        sizes = _uneven(length, like.num_kv_heads) if dtype in SCALED_CACHES else torch.ones(1)
        if isinstance(spec, LatentSpec):
            c, k_pe = k[..., : spec.rank] * sizes, k[..., spec.rank :]
            q[..., : spec.rank] /= sizes.max()
            held, held_pe = (as_cached(x, dtype, params.k_scale) for x in (c, k_pe))
            return cls(q, torch.cat([c, k_pe], -1), c, (torch.cat([held, held_pe], -1), held))
        v = torch.randn(length, like.num_kv_heads, like.head_size_v, generator=random) * sizes
        if dtype in LAYER_SCALES:
            v *= 4000
        return cls(q, k, v, (as_cached(k, dtype, params.k_scale), as_cached(v, dtype, params.v_scale)))


def _uneven(length: int, heads: int) -> Tensor:
    """[L, Hkv, 1]: 1 and 32 in turn, along tokens and along heads."""
    return 32.0 ** ((torch.arange(length).unsqueeze(1) + torch.arange(heads)) % 2).unsqueeze(-1)


class PagedRun:
    """Some conversations in one cache of a backend, their blocks shuffled, everything unwritten NaN.

    changed: those of q, k and v that a call of the backend has changed.
    padding: of every step.
    """

    def __init__(
        self,
        backend: Any,
        spec: AttentionSpec | LatentSpec,
        block_size: int,
        dtype: str,
        conversations: Sequence[Conversation],
        random: torch.Generator,
        padding: Padding = NO_PADDING,
    ) -> None:
        self.backend, self.spec, self.block_size = backend, spec, block_size
        self.padding = padding
        self.conversations = list(conversations)
        self.changed: set[str] = set()
        needed = [-(-len(c.k) // block_size) for c in conversations]
        ids = (torch.randperm(sum(needed), generator=random) + 1).tolist()
        self.tables = [[ids.pop() for _ in range(count)] for count in needed]
        size = backend.kv_layout(spec, block_size, dtype).block_bytes
        self.raw = torch.zeros(sum(needed) + 2, size, dtype=torch.uint8)
        like = as_attention(spec)
        self.params = layer_params(like, dtype)
        learned = (self.params,) if like.sinks or like.alibi or dtype in LAYER_SCALES else ()
        self.handle = backend.bind(spec, block_size, dtype, self.raw, *learned)
        self.raw.fill_(NAN_BYTE)

    def step(self, query_lens: Sequence[int], seq_lens: Sequence[int]) -> list[Tensor]:
        """Write the new tokens of each sequence and attend with them; sequences without any are left out."""
        alive = [i for i, n in enumerate(query_lens) if n]
        spans = [(i, seq_lens[i] - query_lens[i], seq_lens[i]) for i in alive]
        lens = [stop - start for _, start, stop in spans]
        view = batch_view(lens, [stop for *_, stop in spans], [self.tables[i] for i in alive], self.block_size)
        metadata = self.backend.build(self.padding.view(view))
        given = {}
        for name in "kvq":
            parts = [getattr(self.conversations[i], name)[begin:end] for i, begin, end in spans]
            given[name] = self.padding.tensor(torch.cat(parts))
        k, v, q = given.values()
        before = {name: tensor.clone() for name, tensor in given.items()}
        self.write(k, v, metadata)
        out = torch.full((len(q), self.spec.num_heads, v.shape[-1]), torch.nan)
        if isinstance(self.spec, LatentSpec):
            latent, rotated = q.split([self.spec.rank, self.spec.rope_size], -1)
            self.backend.forward_latent(self.handle, latent, rotated, metadata, out)
        else:
            self.backend.forward(self.handle, q, metadata, out)
        same = {name: torch.equal(x.nan_to_num(), before[name].nan_to_num()) for name, x in given.items()}
        self.changed |= {name for name in given if not same[name]}
        return list(out[: sum(lens)].split(lens))

    def write(self, k: Tensor, v: Tensor, metadata: Any) -> None:
        """Store k and v of a `Conversation`; of a latent layer, the latent and the rotated key that k holds."""
        if isinstance(self.spec, LatentSpec):
            self.backend.write_latent(self.handle, v[:, 0], k[:, 0, self.spec.rank :], metadata)
        else:
            self.backend.write(self.handle, k, v, metadata)

    def all(self, chunk: int = 0) -> list[Tensor]:
        """Every sequence from its first token to its last, at most `chunk` tokens of each a step (0: at once)."""
        lengths = [len(c.k) for c in self.conversations]
        done = [0] * len(lengths)
        outs: list[list[Tensor]] = [[] for _ in lengths]
        while done != lengths:
            query_lens = [min(chunk or n, n - d) for n, d in zip(lengths, done, strict=True)]
            done = [d + n for d, n in zip(done, query_lens, strict=True)]
            alive = [i for i, n in enumerate(query_lens) if n]
            for i, part in zip(alive, self.step(query_lens, done), strict=True):
                outs[i].append(part)
        return [torch.cat(parts) for parts in outs]
