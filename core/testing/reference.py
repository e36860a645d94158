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
from core.plugin.contracts import BatchView

CACHE_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
SCALED_CACHES = {"fp8_per_token_head": (448.0, torch.float8_e4m3fn), "int8_per_token_head": (127.0, torch.int8)}
"""By KV dtype: the largest number of its elements, of which each token and head has a scale, and their type."""

NAN_BYTE = 0xFF
"""A cache filled with it holds NaN in every floating-point type."""


def as_attention(spec: AttentionSpec | LatentSpec) -> AttentionSpec:
    """A latent layer is attention with one key-value head: K is the latent and behind it the rotated key, V the latent."""
    if isinstance(spec, AttentionSpec):
        return spec
    return AttentionSpec(spec.num_heads, 1, spec.rank + spec.rope_size, spec.rank, spec.scale)


def dense_attention(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
    """Causal attention of the last positions, q [Tq, Hq, D], over all of k [L, Hkv, D] and v [L, Hkv, Dv], in float64."""
    group = spec.num_heads // spec.num_kv_heads
    k, v = k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * spec.scale
    if spec.cap is not None:
        scores = torch.tanh(scores / spec.cap) * spec.cap
    query = torch.arange(len(k) - len(q), len(k)).unsqueeze(1)
    key = torch.arange(len(k)).unsqueeze(0)
    mask = key <= query
    if spec.window is not None:
        mask &= key > query - spec.window
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~mask, -torch.inf).softmax(-1), v)


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


def as_cached(x: Tensor, dtype: str) -> Tensor:
    """x [L, Hkv, D] as a cache of a KV dtype holds it; unchanged for a dtype that is a backend's own."""
    plain = CACHE_DTYPES.get(dtype)
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
    """One sequence: q [L, Hq, D], k [L, Hkv, D], v [L, Hkv, Dv], rounded to the cache's dtype; see `as_attention`."""

    q: Tensor
    k: Tensor
    v: Tensor

    @classmethod
    def random(cls, length: int, spec: AttentionSpec | LatentSpec, dtype: str, random: torch.Generator) -> Conversation:
        """Normal values."""
        if isinstance(spec, LatentSpec):
            q = torch.randn(length, spec.num_heads, spec.rank + spec.rope_size, generator=random)
            both = torch.randn(length, 1, spec.rank + spec.rope_size, generator=random)
            c, k_pe = (as_cached(x, dtype) for x in both.split([spec.rank, spec.rope_size], -1))
            return cls(q, torch.cat([c, k_pe], -1), c)
        q = torch.randn(length, spec.num_heads, spec.head_size, generator=random)
        k = torch.randn(length, spec.num_kv_heads, spec.head_size, generator=random)
        v = torch.randn(length, spec.num_kv_heads, spec.head_size_v, generator=random)
        return cls(q, as_cached(k, dtype), as_cached(v, dtype))


class PagedRun:
    """Some conversations in one cache of a backend, their blocks shuffled, everything unwritten NaN.

    changed: those of q, k and v that a call of the backend has changed.
    """

    def __init__(
        self,
        backend: Any,
        spec: AttentionSpec | LatentSpec,
        block_size: int,
        dtype: str,
        conversations: Sequence[Conversation],
        random: torch.Generator,
    ) -> None:
        self.backend, self.spec, self.block_size = backend, spec, block_size
        self.conversations = list(conversations)
        self.changed: set[str] = set()
        needed = [-(-len(c.k) // block_size) for c in conversations]
        ids = (torch.randperm(sum(needed), generator=random) + 1).tolist()
        self.tables = [[ids.pop() for _ in range(count)] for count in needed]
        size = backend.kv_layout(spec, block_size, dtype).block_bytes
        self.raw = torch.zeros(sum(needed) + 2, size, dtype=torch.uint8)
        self.handle = backend.bind(spec, block_size, dtype, self.raw)
        self.raw.fill_(NAN_BYTE)

    def step(self, query_lens: Sequence[int], seq_lens: Sequence[int]) -> list[Tensor]:
        """Write the new tokens of each sequence and attend with them; sequences without any are left out."""
        alive = [i for i, n in enumerate(query_lens) if n]
        spans = [(i, seq_lens[i] - query_lens[i], seq_lens[i]) for i in alive]
        lens = [stop - start for _, start, stop in spans]
        view = batch_view(lens, [stop for *_, stop in spans], [self.tables[i] for i in alive], self.block_size)
        metadata = self.backend.build(view)
        given = {x: torch.cat([getattr(self.conversations[i], x)[a:b] for i, a, b in spans]) for x in "kvq"}
        k, v, q = given.values()
        before = {name: tensor.clone() for name, tensor in given.items()}
        self.write(k, v, metadata)
        out = torch.full((len(q), self.spec.num_heads, v.shape[-1]), torch.nan)
        if isinstance(self.spec, LatentSpec):
            latent, rotated = q.split([self.spec.rank, self.spec.rope_size], -1)
            self.backend.forward_latent(self.handle, latent, rotated, metadata, out)
        else:
            self.backend.forward(self.handle, q, metadata, out)
        self.changed |= {name for name, tensor in given.items() if not torch.equal(tensor, before[name])}
        return list(out.split(lens))

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
