"""States in 16 bits on the native kernels: against the reference, and to the bit in any cut, company and place."""

import pytest
import torch

from core.api.specs import StateSpec
from core_attention.cpu_paged.backend import CpuPagedAttention
from core_attention.torch_sdpa.backend import TorchSDPA
from core_kit.checks.states import StateRun
from core_kit.oracles.reference import batch_view
from tests.kernels.test_native_states import LAYERS, LENGTHS

DTYPES = ("bfloat16", "float16", "float32+bfloat16", "bfloat16+float16", "float16+float32")


@pytest.fixture(params=LAYERS)
def spec(request) -> StateSpec:
    return LAYERS[request.param]


@pytest.fixture
def backend(kernels) -> CpuPagedAttention:
    return CpuPagedAttention()


def run(backend, spec, dtype) -> StateRun:
    random = torch.Generator().manual_seed(4)
    sequences = [torch.randn(length, spec.input_size, generator=random) for length in LENGTHS]
    return StateRun(backend, spec, sequences, random, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_states_equal_the_reference(backend, isa, spec, dtype):
    """Sums differ in their last bits, and so now and then does a rounded number of the state."""
    for mine, wanted in zip(run(backend, spec, dtype).all(), run(TorchSDPA(), spec, dtype).all(), strict=True):
        torch.testing.assert_close(mine, wanted, atol=6e-2, rtol=3e-2)
        assert (mine - wanted).abs().mean() < 2e-3


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_depend_on_the_sequence_alone(native, backend, isa, spec, dtype):
    whole = run(backend, spec, dtype).all()
    for chunk, threads in ((1, 1), (7, 3)):
        native.pool_init(threads)
        for mine, wanted in zip(run(backend, spec, dtype).all(chunk), whole, strict=True):
            assert torch.equal(mine, wanted)
    native.pool_init(2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_state_within_one_block_that_moves_has_the_bits_of_a_scattered_one(backend, spec, dtype):
    scattered = run(backend, spec, dtype)
    expected = scattered.all(1)[3]
    raw = torch.full((3, spec.bytes_in(dtype) + 8), 255, dtype=torch.uint8)
    handle = backend.bind_state(spec, dtype, raw, scattered.params)
    for token, inputs in enumerate(scattered.sequences[3]):
        here, there = (1, 2) if token % 2 else (2, 1)
        view = batch_view([1], [token + 1], [[there, here]], 1 << 20)
        view.state_sources = view.block_table[:, 1:]
        before = raw[here].clone()
        out = torch.empty(1, spec.output_size)
        backend.forward_state(handle, inputs.unsqueeze(0), backend.build_state(view), out)
        assert torch.equal(out[0], expected[token])
        assert torch.equal(raw[here], before)


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32+bfloat16"])
def test_a_state_that_moves_between_blocks_of_whole_rows_keeps_its_bits(backend, isa, dtype, chunk):
    """Its rows are updated where they lie: the first token reads them in other blocks, later tokens where they were written."""
    spec = LAYERS["gated_delta, wide"]
    scattered = run(backend, spec, dtype)
    tokens, expected = scattered.sequences[3], scattered.all()[3]
    block_bytes = 1024  # four rows
    count = -(-spec.bytes_in(dtype) // block_bytes)
    raw = torch.full((2 * count, block_bytes), 255, dtype=torch.uint8)
    tables = torch.randperm(2 * count, generator=torch.Generator().manual_seed(0)).view(2, count).tolist()
    handle = backend.bind_state(spec, dtype, raw, scattered.params)
    for start in range(0, 12, chunk):
        here, there = reversed(tables) if start // chunk % 2 else tables
        view = batch_view([chunk], [start + chunk], [there + here], 1 << 20)
        view.state_sources = view.block_table[:, count:]
        before = raw[here].clone()
        out = torch.empty(chunk, spec.output_size)
        backend.forward_state(handle, tokens[start : start + chunk], backend.build_state(view), out)
        assert torch.equal(out, expected[start : start + chunk])
        assert torch.equal(raw[here], before)


def test_a_state_that_would_overflow_stays_at_the_largest_number(backend):
    """A value beyond float16 would be infinite for ever after."""
    spec = LAYERS["mamba2, none"]
    for attention in (backend, TorchSDPA()):
        large = run(attention, spec, "float16")
        large.sequences[0][:8] *= 300
        assert torch.isfinite(large.all()[0]).all()
