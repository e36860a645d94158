"""Native latent attention: against float64, and the same bits for any chunks, blocks, neighbours, threads and recordings."""

import pytest
import torch
from kernels.test_cpu_paged_attention import Sequences

from core.api.specs import AttentionQuery, AttentionSpec, LatentSpec
from core_attention.cpu_paged.backend import CpuPagedAttention
from core_attention.cpu_paged.limits import unsupported
from core_platforms.cpu.tape import Tape, record
from core_runtime.contracts import AttentionParams

TYPES = ["float32", "bfloat16", "float16", "fp8_e4m3", "fp8_e5m2"]


def latent_of(spec: AttentionSpec | LatentSpec) -> LatentSpec:
    if isinstance(spec, LatentSpec):
        return spec
    rank = spec.head_size_v
    return LatentSpec(spec.num_heads, rank, spec.head_size - rank, 16, 16, spec.scale)


class LatentCalls(CpuPagedAttention):
    """Takes keys of one head as a latent with a rotated key behind it."""

    def kv_layout(self, spec, block_size, dtype):
        return super().kv_layout(latent_of(spec), block_size, dtype)

    def bind(self, spec, block_size, dtype, raw, params=None):
        return super().bind(latent_of(spec), block_size, dtype, raw, params)

    def write(self, handle, k, v, metadata):
        self.write_latent(handle, *k[:, 0].split([handle.spec.rank, handle.spec.rope_size], -1), metadata)

    def forward(self, handle, q, metadata, out):
        self.forward_latent(handle, *q.split([handle.spec.rank, handle.spec.rope_size], -1), metadata, out)


class Latents(Sequences):
    """Sequences whose values are a part of their keys."""

    make_backend = LatentCalls

    def __init__(self, spec, lengths, block_size=16, dtype="float32", seed=0, scale=1.0, shared=0):
        super().__init__(spec, lengths, block_size, dtype, seed, AttentionParams(scale, scale), shared)
        self.v = [k[..., : spec.head_size_v] for k in self.k]


def spec_of(heads=5, rank=64, rope=16):
    size = rank + rope
    return AttentionSpec(heads, 1, size, rank, size**-0.5)


SPECS = [spec_of(), spec_of(1, 24, 8), spec_of(20, 128, 64), spec_of(60, 16, 2), spec_of(16, 512, 64)]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.num_heads}x{spec.head_size_v}+{spec.head_size}")
@pytest.mark.parametrize("dtype", TYPES)
def test_prefill_and_decode_match_softmax_attention(kernels, isa, spec, dtype):
    scale = 0.25 if dtype.startswith("fp8") else 1.0
    sequences = Latents(spec, [200, 1, 33], 16, dtype, scale=scale)
    outputs = {i: [] for i in range(3)}
    for counts in ([150, 1, 0], [1, 0, 32], [49, 0, 1]):
        for i, out in sequences.step(counts).items():
            outputs[i].append(out)
    rounds = dtype not in ("float32", "float16") and (isa == "amx" or isa.endswith("bf16"))
    for i in range(3):
        error = torch.cat(outputs[i]).double() - sequences.expected(i)
        assert error.abs().max() < (0.04 if rounds else 1e-5)
        assert not rounds or error.square().mean().sqrt() < 0.004


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "fp8_e4m3"])
def test_bits_do_not_depend_on_chunks_blocks_neighbours_or_threads(native, kernels, isa, dtype):
    want = None
    for block_size, threads, chunk in (
        *((16, 1, 1000), (16, 2, 1000), (16, 2, 37), (16, 1, 1), (1, 2, 1000), (48, 1, 90), (37, 2, 61), (128, 2, 7)),
    ):
        native.pool_init(threads)
        sequences = Latents(spec_of(6, 40, 8), [280, 70], block_size, dtype)
        parts = []
        while sequences.done[0] < 280:
            count = min(chunk, 280 - sequences.done[0])
            parts.append(sequences.step([count, 1 if sequences.done[1] < 70 else 0])[0])
        whole = torch.cat(parts)
        want = whole if want is None else want
        assert torch.equal(whole, want)
    native.pool_init(2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_shared_prefix_has_the_bits_of_separate_ones(native, kernels, isa, dtype):
    lengths = [290, 275, 300]
    for threads in (1, 2):
        native.pool_init(threads)
        together = Latents(spec_of(), lengths, 16, dtype, shared=256)
        alone = Latents(spec_of(), lengths, 16, dtype)
        alone.q, alone.k = together.q, together.k
        for counts in ([262] * 3, [1] * 3, [7, 1, 9]):
            got, want = together.step(counts), alone.step(counts)
            assert all(torch.equal(got[i], want[i]) for i in want)
    native.pool_init(2)


def test_calls_are_recorded_and_replayed(kernels):
    """The replay of a step of three sequences, for two of them and other numbers."""
    sequences = Latents(spec_of(), [60, 60, 60], 16, "bfloat16")
    sequences.step([50, 40, 30])
    backend, steps = sequences.backend, []

    def kept(name):
        call = getattr(backend, name)
        return lambda *args: (steps.append((call, args)), call(*args))

    backend.write, backend.forward = kept("write"), kept("forward")
    sequences.step([1, 1, 1])
    (write, written), (forward, attended) = steps
    tape = record(lambda: (write(*written), forward(*attended)), 3, 3)
    assert isinstance(tape, Tape) and tape.length == 2
    _, k, _, _ = written
    _, q, _, out = attended
    k.normal_()
    q.normal_()
    out.fill_(torch.nan)
    tape(2, 2)
    replayed = out.clone()
    write(*written)
    forward(*attended)
    assert torch.equal(replayed[:2], out[:2])
    assert replayed[2].isnan().all()


def test_what_is_unsupported_is_said(kernels):
    def codes(spec, dtype="float32"):
        return [reason.code for reason in unsupported(AttentionQuery(latent_of(spec), "cpu", dtype, 16))]

    assert codes(spec_of()) == codes(spec_of(128, 512, 64)) == []
    assert codes(spec_of(rank=20)) == codes(spec_of(rank=8)) == ["rank"]
    assert codes(spec_of(rank=512, rope=128)) == codes(spec_of(rope=3)) == ["rope_size"]
    for dtype in ("int8_per_token_head", "k8v4_per_token_head", "no_such"):
        assert codes(spec_of(), dtype) == ["kv_cache_dtype"]
