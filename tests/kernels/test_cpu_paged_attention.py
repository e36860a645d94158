"""Paged attention against float64 softmax attention, over blocks in random order and a cache full of garbage."""

import math
import threading

import pytest
import torch
from attention.stored import TYPES, stored

from core.api.errors import PluginError
from core.api.specs import AttentionQuery, AttentionSpec
from core_attention.cpu_paged.backend import CpuPagedAttention
from core_attention.cpu_paged.limits import unsupported
from core_runtime.contracts import AttentionParams, BatchView


class Sequences:
    """Keys, values and queries of a few sequences, and their paged cache."""

    make_backend = CpuPagedAttention

    def __init__(self, spec, lengths, block_size=16, dtype="float32", seed=0, params=None, shared=0):
        generator = torch.Generator().manual_seed(seed)
        self.spec, self.lengths, self.block_size, self.dtype = spec, lengths, block_size, dtype
        self.backend = self.make_backend()

        def draw(heads, width):
            return [torch.randn(length, heads, width, generator=generator) for length in lengths]

        self.q, self.k = draw(spec.num_heads, spec.head_size), draw(spec.num_kv_heads, spec.head_size)
        self.v = draw(spec.num_kv_heads, spec.head_size_v)
        blocks = [math.ceil(length / block_size) for length in lengths]
        order = torch.randperm(sum(blocks) + 3, generator=generator).int()
        self.table = torch.zeros(len(lengths), max(blocks) + 2, dtype=torch.int32)
        for i, count in enumerate(blocks):
            self.table[i, :count], order = order[:count], order[count:]
        self.params = params or params_of(spec)
        for i in range(1, len(lengths)):  # the first `shared` tokens of all are those of sequence 0
            self.table[i, : shared // block_size] = self.table[0, : shared // block_size]
            self.k[i][:shared], self.v[i][:shared] = self.k[0][:shared], self.v[0][:shared]
        layout = self.backend.kv_layout(spec, block_size, dtype)
        raw = torch.full((sum(blocks) + 3, layout.block_bytes), 255, dtype=torch.uint8)  # every element is NaN
        self.raw, self.layer = raw, self.backend.bind(spec, block_size, dtype, raw, self.params)
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
        k = stored(self.k[i], self.dtype, self.params.k_scale).repeat_interleave(group, 1)
        v = stored(self.v[i], self.dtype, self.params.v_scale, values=True).repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", self.q[i].double(), k) * spec.scale
        if spec.cap:
            scores = spec.cap * torch.tanh(scores / spec.cap)
        ahead = torch.arange(self.lengths[i])[:, None] - torch.arange(self.lengths[i])
        first = torch.tensor([spec.first_key(position) for position in range(self.lengths[i])])[:, None]
        visible = (ahead >= 0) & (torch.arange(self.lengths[i]) >= first)
        if spec.alibi:
            scores = scores - self.params.slopes.double().view(-1, 1, 1) * ahead
        weights = scores.masked_fill(~visible, -math.inf).exp()
        sinks = self.params.sinks.double().exp().view(-1, 1, 1) if spec.sinks else 0
        return torch.einsum("hqk,khd->qhd", weights / (weights.sum(-1, keepdim=True) + sinks), v)


def spec_of(heads=6, kv=2, size=64, size_v=None, window=None, cap=None, **learned):
    return AttentionSpec(heads, kv, size, size_v or size, size**-0.5, window, cap, **learned)


def params_of(spec, k_scale=1.0, v_scale=1.0):
    sinks = torch.linspace(-2, 3, spec.num_heads) if spec.sinks else None
    slopes = 0.7 ** torch.arange(1, spec.num_heads + 1) if spec.alibi else None
    return AttentionParams(k_scale, v_scale, sinks, slopes)


SPECS = [
    spec_of(),
    spec_of(9, 3, 64),
    spec_of(4, 1, 256, window=40),
    spec_of(4, 4, 32, cap=5.0),
    spec_of(8, 1, 80, 48),
    spec_of(2, 1, 16, window=1),
    spec_of(40, 1, 32),
    spec_of(3, 3, 64, window=200, cap=20.0),
    spec_of(4, 2, 72, 96),
    spec_of(8, 2, 64, window=128, sinks=True),
    spec_of(4, 2, 64, window=150, chunked=True),
    spec_of(6, 3, 40, sinks=True, alibi=True),
]


CASES = [(spec, dtype) for dtype in ("float32", "bfloat16") for spec in SPECS]
CASES += [(spec, dtype) for dtype in TYPES[2:] for spec in (SPECS[2], SPECS[4], SPECS[10])]


@pytest.mark.parametrize(("spec", "dtype"), CASES, ids=str)
def test_prefill_and_decode_match_softmax_attention(kernels, isa, spec, dtype):
    sequences = Sequences(spec, [300, 1, 33], 16, dtype)
    outputs = {i: [] for i in range(3)}
    for counts in ([100, 1, 0], [1, 0, 32], [150, 0, 1], [49, 0, 0]):
        for i, out in sequences.step(counts).items():
            outputs[i].append(out)
    # Queries and weights, to 8 bits: see attention_span.inc.h.
    rounds = dtype not in ("float32", "float16") and (isa == "amx" or isa.endswith("bf16"))
    for i in range(3):
        error = torch.cat(outputs[i]).double() - sequences.expected(i)
        if rounds:
            assert error.abs().max() < 0.03
            assert error.square().mean().sqrt() < 0.003
        else:
            torch.testing.assert_close(error, torch.zeros_like(error), rtol=0, atol=5e-6)


def test_a_small_stack_is_enough(kernels, isa):
    results = []
    sequences = Sequences(spec_of(4, 1, 256), [300], 16, "float16")
    before = threading.stack_size(256 << 10)  # that of a main thread under `ulimit -s 256`
    try:
        thread = threading.Thread(target=lambda: results.append(sequences.step([300])[0]))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    torch.testing.assert_close(results[0].double(), sequences.expected(0), rtol=0, atol=5e-6)


def test_equal_values_stay_as_they_are_whatever_the_weights(kernels, isa):
    sequences = Sequences(spec_of(), [300], 16, "bfloat16")
    sequences.v[0][:] = 1.25
    torch.testing.assert_close(sequences.step([300])[0], torch.full((300, 6, 64), 1.25), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8_per_token_head", "k8v4_per_token_head"])
@pytest.mark.parametrize("window", [None, 70, -130])  # below 0: in chunks
def test_bits_do_not_depend_on_chunks_blocks_neighbours_or_threads(native, kernels, isa, window, dtype):
    spec = spec_of(6, 2, 64, window=window and abs(window), chunked=window == -130)
    want = None
    for block_size, threads, chunk in (
        *((16, 1, 1000), (16, 2, 1000), (16, 2, 37), (16, 1, 64), (1, 2, 1000), (1, 1, 50), (48, 2, 90)),
        *((37, 2, 1000), (256, 2, 61), (128, 1, 1000), (128, 2, 7)),
    ):
        native.pool_init(threads)
        sequences = Sequences(spec, [300, 70], block_size, dtype)
        parts = []
        while sequences.done[0] < 300:
            count = min(chunk, 300 - sequences.done[0])
            parts.append(sequences.step([count, 1 if sequences.done[1] < 70 else 0])[0])
        whole = torch.cat(parts)
        want = whole if want is None else want
        assert torch.equal(whole, want)
    native.pool_init(2)
    alone = Sequences(spec, [300, 70], 16, dtype)
    torch.testing.assert_close(alone.step([300, 0])[0], want, rtol=0, atol=0)


COMPANIES = [(spec_of(9, 3, 64), "bfloat16"), (spec_of(4, 1, 80, window=150, cap=8.0), "fp8_e4m3"),
             (spec_of(6, 2, 32, sinks=True), "int8_per_token_head"), (spec_of(2, 2, 64, window=30), "float16"),
             (spec_of(4, 2, 64, window=160, chunked=True), "bfloat16"),
             (spec_of(8, 2, 48, 80, window=200), "k8v4_per_token_head")]  # fmt: skip


@pytest.mark.parametrize(("spec", "dtype"), COMPANIES, ids=lambda x: str(x)[:60])
@pytest.mark.parametrize("block_size", [16, 128, 1])
def test_a_shared_prefix_has_the_bits_of_separate_ones(native, kernels, isa, spec, dtype, block_size):
    """Decode steps and small chunks of sequences whose first blocks are the same ones, nested: two share one more span."""
    lengths = [290, 275, 300, 288, 150]
    for threads in (1, 2):
        native.pool_init(threads)
        together = Sequences(spec, lengths, block_size, dtype, shared=128)
        together.table[3, : 256 // block_size] = together.table[0, : 256 // block_size]
        together.k[3][:256], together.v[3][:256] = together.k[0][:256], together.v[0][:256]
        alone = Sequences(spec, lengths, block_size, dtype)
        alone.q, alone.k, alone.v = together.q, together.k, together.v
        for sequences in (together, alone):
            sequences.step([262, 262, 262, 262, 140])
        for counts in ([1] * 5, [7, 1, 30, 0, 2], [0, 1, 1, 1, 1]):
            got, want = together.step(counts), alone.step(counts)
            assert all(torch.equal(got[i], want[i]) for i in want)
    native.pool_init(2)
    for i in got:
        error = got[i].double() - alone.expected(i)[alone.done[i] - len(got[i]) : alone.done[i]]
        assert error.abs().max() < 0.03


@pytest.mark.parametrize("dtype", TYPES)
def test_one_token_at_a_time_has_the_bits_of_a_prefill(native, kernels, isa, dtype):
    for threads in (1, 2):
        native.pool_init(threads)
        whole = Sequences(spec_of(9, 3, 64), [400], 16, dtype).step([400])[0]
        decode = Sequences(spec_of(9, 3, 64), [400], 16, dtype)
        decode.step([380])
        for position in range(380, 400):
            assert torch.equal(decode.step([1])[0][0], whole[position])
    native.pool_init(2)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8_per_token_head", "k8v4_per_token_head"])
@pytest.mark.parametrize("group", [1, 2, 4, 5, 17])
def test_few_rows_have_the_bits_of_a_prefill(kernels, isa, group, dtype):
    """Up to four query heads of a key's head widen its numbers as they read them, and need no tiles; more rows do."""
    spec = spec_of(2 * group, 2, 80, 48)
    whole = Sequences(spec, [300], 16, dtype).step([300])[0]
    decode = Sequences(spec, [300], 16, dtype)
    decode.step([295])
    for position in range(295, 300):
        assert torch.equal(decode.step([1])[0][0], whole[position])


def test_numbers_too_small_for_tiles_have_the_bits_of_a_prefill(kernels, isa):
    """Tiles take and make no subnormal numbers: vectors beside them must not either."""
    spec = spec_of(4, 2, 64)
    whole, decode = Sequences(spec, [300], 16, "bfloat16"), Sequences(spec, [300], 16, "bfloat16")
    for sequences in (whole, decode):
        sequences.v[0] *= 1e-36
    together = whole.step([300])[0]
    decode.step([295])
    assert together.abs().max() > 0
    for position in range(295, 300):
        assert torch.equal(decode.step([1])[0][0], together[position])


@pytest.mark.parametrize("chunked", [False, True])
def test_blocks_behind_the_window_are_never_read(kernels, isa, chunked):
    spec = spec_of(4, 2, 32, window=40, chunked=chunked)
    sequences = Sequences(spec, [200], 16)
    sequences.step([199])
    behind = spec.first_key(199) // 16
    for block in sequences.table[0, :behind]:
        sequences.raw[block.item()] = 255
    sequences.table[0, :behind] = 10**9 // 16
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
    assert codes(spec_of(size=20)) == codes(spec_of(size=8)) == codes(spec_of(size=520)) == ["head_size"]
    assert codes(spec_of(), dtype="fp8_ds_mla") == ["kv_cache_dtype"]
    assert codes(spec_of(size=40)) == codes(spec_of(size=48), dtype="k8v4_per_token_head") == []
    assert codes(spec_of(size=40), dtype="k8v4_per_token_head") == ["head_size"]
    assert codes(spec_of(), device="cuda") == ["device"]
    with pytest.raises(PluginError, match="head_size"):
        CpuPagedAttention().bind(spec_of(size=20), 16, "float32", torch.zeros(1, 1, dtype=torch.uint8))
