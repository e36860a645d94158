"""Every attention backend against a dense float64 reference: chunks, decode, windows, caps, sinks, slopes, GQA, KV dtypes."""

from types import ModuleType

import pytest
import torch
from attention.stored import TYPES, stored

from core.api.specs import AttentionQuery, AttentionSpec
from core.plugin.hookspecs import LoadContext
from core_attention.cpu_paged import manifest as cpu_paged
from core_attention.torch_sdpa import manifest as torch_sdpa
from core_attention.torch_sdpa.backend import TorchSDPA
from core_config.selection.reasons import attention_reasons
from core_runtime.contracts import AttentionBackend, AttentionParams, BatchView


def backend(name: str) -> AttentionBackend:
    if name == "torch_sdpa":
        from core_attention.torch_sdpa import manifest
    else:
        pytest.importorskip("core_platforms.cpu._native")
        from core_attention.cpu_paged import manifest
    return manifest.core_load(LoadContext())


def dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spec: AttentionSpec, params: AttentionParams
) -> torch.Tensor:
    """Causal attention of the last len(q) positions over all of k and v, in float64."""
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
        first = query - query % spec.window if spec.chunked else query - spec.window + 1
        mask &= key >= first
    weights = scores.masked_fill(~mask, -torch.inf).exp()
    total = weights.sum(-1, keepdim=True)
    if params.sinks is not None:
        total = total + params.sinks.double().exp().view(-1, 1, 1)
    return torch.einsum("hqk,khd->qhd", weights / total, v)


def view_of(lens: list[int], seq_lens: list[int], tables: list[list[int]], block_size: int) -> BatchView:
    positions = [p for n, s in zip(lens, seq_lens, strict=True) for p in range(s - n, s)]
    owner = [i for i, n in enumerate(lens) for _ in range(n)]
    slots = [tables[i][p // block_size] * block_size + p % block_size for i, p in zip(owner, positions, strict=True)]
    width = max(map(len, tables))
    cumulative = [0]
    for n in lens:
        cumulative.append(cumulative[-1] + n)
    return BatchView(
        num_tokens=sum(lens),
        num_seqs=len(lens),
        block_size=block_size,
        max_query_len=max(lens),
        max_seq_len=max(seq_lens),
        query_lens=lens,
        seq_lens_list=seq_lens,
        cu_seqlens_q=torch.tensor(cumulative, dtype=torch.int32),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        block_table=torch.tensor([t + [0] * (width - len(t)) for t in tables], dtype=torch.int32),
        slot_mapping=torch.tensor(slots),
        positions=torch.tensor(positions),
    )


def params_of(spec: AttentionSpec, dtype: str) -> AttentionParams:
    """Uneven numbers for whatever the layer has."""
    sinks = torch.linspace(-2, 3, spec.num_heads) if spec.sinks else None
    slopes = 0.7 ** torch.arange(1, spec.num_heads + 1) if spec.alibi else None
    if dtype.startswith("fp8_e"):
        return AttentionParams(0.011, 0.3, sinks, slopes)
    return AttentionParams(sinks=sinks, slopes=slopes)


class Case:
    """Random K and V of some sequences, written in one step, then queried for their last tokens."""

    def __init__(self, spec: AttentionSpec, block_size: int, dtype: str, seq_lens: list[int], seed: int = 0) -> None:
        self.params = params_of(spec, dtype)
        self.spec, self.block_size, self.dtype, self.seq_lens = spec, block_size, dtype, seq_lens
        generator = torch.Generator().manual_seed(seed)
        total = sum(seq_lens)
        self.k = torch.randn(total, spec.num_kv_heads, spec.head_size, generator=generator)
        self.v = torch.randn(total, spec.num_kv_heads, spec.head_size_v, generator=generator)
        self.q = torch.randn(total, spec.num_heads, spec.head_size, generator=generator)
        needed = [-(-s // block_size) for s in seq_lens]
        ids = (torch.randperm(sum(needed), generator=generator) + 1).tolist()
        self.tables = [[ids.pop() for _ in range(n)] for n in needed]
        self.num_blocks = sum(needed) + 1

    def run(self, attention: AttentionBackend, lens: list[int]) -> list[torch.Tensor]:
        """Outputs of the last `lens` tokens of each sequence."""
        size = attention.kv_layout(self.spec, self.block_size, self.dtype).block_bytes
        raw = torch.zeros(self.num_blocks, size, dtype=torch.uint8)
        handle = attention.bind(self.spec, self.block_size, self.dtype, raw, self.params)
        everything = attention.build(view_of(self.seq_lens, self.seq_lens, self.tables, self.block_size))
        attention.write(handle, self.k, self.v, everything)
        starts = [sum(self.seq_lens[: i + 1]) for i in range(len(lens))]
        q = torch.cat([self.q[end - n : end] for end, n in zip(starts, lens, strict=True)])
        out = torch.full((len(q), self.spec.num_heads, self.spec.head_size_v), torch.nan)
        attention.forward(handle, q, attention.build(view_of(lens, self.seq_lens, self.tables, self.block_size)), out)
        return list(out.split(lens))

    def expected(self, lens: list[int]) -> list[torch.Tensor]:
        results, start = [], 0
        for seq_len, n in zip(self.seq_lens, lens, strict=True):
            stop = start + seq_len
            k = stored(self.k[start:stop], self.dtype, self.params.k_scale)
            v = stored(self.v[start:stop], self.dtype, self.params.v_scale, values=True)
            results.append(dense(self.q[stop - n : stop], k, v, self.spec, self.params))
            start = stop
        return results


NAMES = ["torch_sdpa", "cpu_paged"]
SPECS = {
    "gqa": AttentionSpec(9, 3, 64, 64, 64**-0.5),
    "mqa_256": AttentionSpec(4, 1, 256, 256, 256**-0.5),
    "mha_odd": AttentionSpec(3, 3, 80, 80, 0.2),
    "window": AttentionSpec(4, 2, 32, 32, 0.17, window=21),
    "chunks": AttentionSpec(4, 2, 32, 32, 0.17, window=21, chunked=True),
    "cap": AttentionSpec(4, 2, 32, 32, 0.3, cap=5.0),
    "sinks": AttentionSpec(8, 2, 64, 64, 0.125, window=50, sinks=True),
    "alibi": AttentionSpec(6, 2, 48, 48, 0.144, alibi=True),
    "narrow_v": AttentionSpec(4, 2, 72, 40, 0.12),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
@pytest.mark.parametrize("block_size", [1, 16, 128])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_equals_dense_attention(name: str, spec: AttentionSpec, block_size: int, dtype: str) -> None:
    case = Case(spec, block_size, dtype, [70, 1, 33, 129])
    lens = [70, 1, 1, 40]
    for got, expected in zip(case.run(backend(name), lens), case.expected(lens), strict=True):
        tolerance = 3e-5 if name == "torch_sdpa" or dtype in ("float32", "float16") else 3e-2
        torch.testing.assert_close(got.double(), expected, atol=tolerance, rtol=tolerance)


def test_native_bits_do_not_depend_on_blocks_chunks_or_company() -> None:
    attention = backend("cpu_paged")
    spec = SPECS["gqa"]
    for dtype in TYPES:
        whole = Case(spec, 16, dtype, [150], seed=5)
        expected = whole.run(attention, [150])[0]
        for block_size in (1, 32, 128):
            other = Case(spec, block_size, dtype, [150], seed=5)
            assert torch.equal(other.run(attention, [150])[0], expected)
        for chunk in (1, 7, 64):
            assert torch.equal(whole.run(attention, [chunk])[0], expected[-chunk:])
        company = Case(spec, 16, dtype, [150, 40, 77], seed=5)
        company.k[:150], company.v[:150], company.q[:150] = whole.k, whole.v, whole.q
        assert torch.equal(company.run(attention, [150, 40, 1])[0], expected)


@pytest.mark.parametrize("name", ["torch_sdpa", "torch_sdpa by query", "cpu_paged"])
@pytest.mark.parametrize("window, reach", [(None, 400), (9, 4), (151, 75), (1, 0)])
def test_encoders_see_keys_to_both_sides(name: str, window: int | None, reach: int) -> None:
    spec = AttentionSpec(4, 2, 32, 32, 0.17, window=window, causal=False)
    lens = [70, 1, 33, 300]
    case = Case(spec, 16, "float32", lens)
    attention = TorchSDPA(by_query=True) if name.endswith("by query") else backend(name)
    results = case.run(attention, lens)
    start = 0
    for length, got in zip(lens, results, strict=True):
        part = slice(start, start + length)
        start += length
        k = case.k[part].double().repeat_interleave(2, 1)
        v = case.v[part].double().repeat_interleave(2, 1)
        scores = 0.17 * torch.einsum("qhd,khd->hqk", case.q[part].double(), k)
        place = torch.arange(length)
        distance = (place[:, None] - place).abs()
        weights = scores.masked_fill(distance > reach, float("-inf")).softmax(-1)
        expected = torch.einsum("hqk,khd->qhd", weights, v)
        torch.testing.assert_close(got.double(), expected, atol=3e-5, rtol=0)


@pytest.mark.parametrize("window", [None, 100])
def test_native_bits_of_an_encoder_do_not_depend_on_blocks_or_company(window: int | None) -> None:
    attention = backend("cpu_paged")
    spec = AttentionSpec(4, 2, 32, 32, 0.17, window=window, causal=False)
    for dtype in ("float32", "bfloat16"):
        alone = Case(spec, 16, dtype, [150], seed=5)
        expected = alone.run(attention, [150])[0]
        company = Case(spec, 32, dtype, [150, 40, 300], seed=5)
        company.k[:150], company.v[:150], company.q[:150] = alone.k, alone.v, alone.q
        assert torch.equal(company.run(attention, [150, 40, 300])[0], expected)


@pytest.mark.parametrize("manifest", [cpu_paged, torch_sdpa])
def test_both_backends_of_the_cpu_serve_encoders(manifest: ModuleType) -> None:
    query = AttentionQuery(AttentionSpec(4, 2, 32, 32, 0.17, causal=False), "cpu", "float32", 16)
    assert not attention_reasons(manifest.core_spec(), query)


def test_the_native_backend_refuses_slopes_of_encoders() -> None:
    query = AttentionQuery(AttentionSpec(4, 2, 32, 32, 0.17, causal=False, alibi=True), "cpu", "float32", 16)
    assert [reason.code for reason in cpu_paged.core_supports(query)] == ["alibi"]
