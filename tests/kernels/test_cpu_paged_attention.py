"""Paged attention against float64 softmax attention, over blocks in random order and a cache full of garbage."""

import math

import pytest
import torch

from core.api.errors import PluginError
from core.api.specs import AttentionQuery, AttentionSpec
from core.plugin.contracts import BatchView
from plugins.attention.cpu_paged.backend import CpuPagedAttention
from plugins.attention.cpu_paged.limits import unsupported


class Sequences:
    """Keys, values and queries of a few sequences, and their paged cache."""

    def __init__(self, spec, lengths, block_size=16, dtype="float32", seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.spec, self.lengths, self.block_size, self.dtype = spec, lengths, block_size, dtype
        self.backend = CpuPagedAttention()

        def draw(heads, width):
            return [torch.randn(length, heads, width, generator=generator) for length in lengths]

        self.q, self.k = draw(spec.num_heads, spec.head_size), draw(spec.num_kv_heads, spec.head_size)
        self.v = draw(spec.num_kv_heads, spec.head_size_v)
        blocks = [math.ceil(length / block_size) for length in lengths]
        order = torch.randperm(sum(blocks) + 3, generator=generator).int()
        self.table = torch.zeros(len(lengths), max(blocks) + 2, dtype=torch.int32)
        for i, count in enumerate(blocks):
            self.table[i, :count], order = order[:count], order[count:]
        layout = self.backend.kv_layout(spec, block_size, dtype)
        raw = torch.full((sum(blocks) + 3, layout.block_bytes), 255, dtype=torch.uint8)  # every element is NaN
        self.raw, self.layer = raw, self.backend.bind(spec, block_size, dtype, raw)
        self.done = [0] * len(lengths)

    def step(self, counts):
        """Write and attend the next counts[i] tokens of each sequence; the outputs, one a sequence."""
        which = [i for i, count in enumerate(counts) if count]
        starts = {i: self.done[i] for i in which}
        for i in which:
            self.done[i] += counts[i]
        positions = [torch.arange(starts[i], self.done[i]) for i in which]
        blocks = [self.table[i, p // self.block_size].long() for i, p in zip(which, positions, strict=True)]
        slots = [b * self.block_size + p % self.block_size for b, p in zip(blocks, positions, strict=True)]
        lens = [counts[i] for i in which]
        view = BatchView(
            num_tokens=sum(lens), num_seqs=len(which), block_size=self.block_size, max_query_len=max(lens),
            max_seq_len=max(self.done), query_lens=lens, seq_lens_list=[self.done[i] for i in which],
            cu_seqlens_q=torch.tensor([0, *lens]).cumsum(0).int(), seq_lens=torch.tensor([self.done[i] for i in which]).int(),
            block_table=self.table[which].contiguous(), slot_mapping=torch.cat(slots), positions=torch.cat(positions),
        )  # fmt: skip

        def rows(parts):
            return torch.cat([parts[i][starts[i] : self.done[i]] for i in which])

        metadata = self.backend.build(view)
        self.backend.write(self.layer, rows(self.k), rows(self.v), metadata)
        out = torch.full((sum(lens), self.spec.num_heads, self.spec.head_size_v), float("nan"))
        self.backend.forward(self.layer, rows(self.q), metadata, out)
        return dict(zip(which, out.split(lens), strict=True))

    def expected(self, i):
        """Attention of all tokens of sequence i, in float64, over the rounded cache."""
        spec, group = self.spec, self.spec.num_heads // self.spec.num_kv_heads
        kind = getattr(torch, self.dtype)
        k, v = (x[i].to(kind).double().repeat_interleave(group, 1) for x in (self.k, self.v))
        scores = torch.einsum("qhd,khd->hqk", self.q[i].double(), k) * spec.scale
        if spec.cap:
            scores = spec.cap * torch.tanh(scores / spec.cap)
        ahead = torch.arange(self.lengths[i])[:, None] - torch.arange(self.lengths[i])
        visible = ahead >= 0 if spec.window is None else (ahead >= 0) & (ahead < spec.window)
        weights = scores.masked_fill(~visible, -math.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, v)


def spec_of(heads=6, kv=2, size=64, size_v=None, window=None, cap=None):
    return AttentionSpec(heads, kv, size, size_v or size, size**-0.5, window, cap)


SPECS = [
    spec_of(),
    spec_of(9, 3, 64),
    spec_of(4, 1, 256, window=40),
    spec_of(4, 4, 32, cap=5.0),
    spec_of(8, 1, 80, 48),
    spec_of(2, 1, 16, window=1),
    spec_of(40, 1, 32),
    spec_of(3, 3, 64, window=200, cap=20.0),
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_prefill_and_decode_match_softmax_attention(kernels, isa, spec, dtype):
    sequences = Sequences(spec, [300, 1, 33], 16, dtype)
    outputs = {i: [] for i in range(3)}
    for counts in ([100, 1, 0], [1, 0, 32], [150, 0, 1], [49, 0, 0]):
        for i, out in sequences.step(counts).items():
            outputs[i].append(out)
    rounds = dtype == "bfloat16" and isa.endswith("bf16")  # queries and weights, to 8 bits: see attention.inc.h
    for i in range(3):
        error = torch.cat(outputs[i]).double() - sequences.expected(i)
        if rounds:
            assert error.abs().max() < 0.03
            assert error.square().mean().sqrt() < 0.003
        else:
            torch.testing.assert_close(error, torch.zeros_like(error), rtol=0, atol=5e-6)


def test_equal_values_stay_as_they_are_whatever_the_weights(kernels, isa):
    sequences = Sequences(spec_of(), [300], 16, "bfloat16")
    sequences.v[0][:] = 1.25
    torch.testing.assert_close(sequences.step([300])[0], torch.full((300, 6, 64), 1.25), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("window", [None, 70])
def test_bits_do_not_depend_on_chunks_blocks_neighbours_or_threads(native, kernels, isa, window, dtype):
    spec = spec_of(6, 2, 64, window=window)
    want = None
    for block_size in (16, 1, 48, 37, 256):
        for threads, chunk in ((1, 1000), (2, 1000), (2, 37), (1, 64)):
            native.pool_init(threads)
            sequences = Sequences(spec, [500, 70], block_size, dtype)
            parts = []
            while sequences.done[0] < 500:
                count = min(chunk, 500 - sequences.done[0])
                parts.append(sequences.step([count, 1 if sequences.done[1] < 70 else 0])[0])
            whole = torch.cat(parts)
            want = whole if want is None else want
            assert torch.equal(whole, want)
    native.pool_init(2)
    alone = Sequences(spec, [500, 70], 16, dtype)
    torch.testing.assert_close(alone.step([500, 0])[0], want, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_token_at_a_time_has_the_bits_of_a_prefill(native, kernels, isa, dtype):
    for threads in (1, 2):
        native.pool_init(threads)
        whole = Sequences(spec_of(9, 3, 64), [400], 16, dtype).step([400])[0]
        decode = Sequences(spec_of(9, 3, 64), [400], 16, dtype)
        decode.step([380])
        for position in range(380, 400):
            assert torch.equal(decode.step([1])[0][0], whole[position])
    native.pool_init(2)


def test_blocks_behind_the_window_are_never_read(kernels, isa):
    sequences = Sequences(spec_of(4, 2, 32, window=40), [200], 16)
    sequences.step([199])
    for block in sequences.table[0, : (199 - 39) // 16]:
        sequences.raw[block.item()] = 255
    sequences.table[0, : (199 - 39) // 16] = 10**9 // 16
    out = sequences.step([1])[0]
    torch.testing.assert_close(out[0].double(), sequences.expected(0)[-1], rtol=1e-5, atol=1e-6)


def test_strided_projections_are_read_in_place(kernels):
    sequences = Sequences(spec_of(4, 2, 32), [20])
    want = sequences.step([20])[0]
    fused = torch.cat([x[0].reshape(20, -1) for x in (sequences.q, sequences.k, sequences.v)], 1)
    again = Sequences(spec_of(4, 2, 32), [20])
    again.q[0], again.k[0] = fused[:, :128].view(20, 4, 32), fused[:, 128:192].view(20, 2, 32)
    again.v[0] = fused[:, 192:].view(20, 2, 32)
    assert torch.equal(again.step([20])[0], want)


def test_what_is_unsupported_is_said(kernels):
    def codes(spec, **query):
        fields = {"device": "cpu", "dtype": "float32", "block_size": 16} | query
        return [reason.code for reason in unsupported(AttentionQuery(spec, **fields))]

    assert codes(spec_of()) == []
    assert codes(spec_of(size=24)) == ["head_size"]
    assert codes(spec_of(), dtype="fp8") == ["kv_cache_dtype"]
    assert codes(spec_of(), device="cuda") == ["device"]
    with pytest.raises(PluginError, match="head_size"):
        CpuPagedAttention().bind(spec_of(size=24), 16, "float32", torch.zeros(1, 1, dtype=torch.uint8))
