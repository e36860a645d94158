"""Layers with a state on the native kernels: against the reference, to the bit in any cut and company, on the tape."""

import pytest
import torch

from core.api.errors import PluginError
from core.api.specs import STATE_DTYPE, StateQuery
from core_attention.cpu_paged.backend import CpuPagedAttention
from core_attention.cpu_paged.limits import unsupported_state
from core_attention.torch_sdpa.backend import TorchSDPA
from core_kit.checks.states import StateRun
from core_kit.oracles.reference import batch_view
from core_models import lfm2
from core_platforms.cpu.tape import record
from core_runtime.models.state_ops.gated_delta import gated_delta
from core_runtime.models.state_ops.kda import kda
from core_runtime.models.state_ops.mamba1 import mamba1
from core_runtime.models.state_ops.mamba2 import mamba2

SCALES = {"z_scale": 0.7, "x_scale": 1.3, "b_scale": 0.9, "c_scale": 1.1, "dt_scale": 0.8}
LAYERS = {
    "short_conv": lfm2.short_conv(300, 3, bias=True),
    "mamba1": mamba1(channels=150, state=16, rank=9, norm="weighted"),
    "mamba1, odd": mamba1(channels=70, state=5, rank=3, kernel=3, norm="plain", conv_bias=False),
    "mamba2": mamba2(heads=6, head_size=24, state=128, groups=2, norm_groups=3, dt_limits=(0.1, 3.0), scales=SCALES),
    "mamba2, before": mamba2(heads=4, head_size=9, state=20, kernel=2, norm="before_gate", conv_bias=False),
    "mamba2, none": mamba2(heads=3, head_size=33, state=256, norm="none"),
    "gated_delta": gated_delta(key_heads=2, value_heads=6, key_size=20, value_size=17, beta_scale=2.0),
    "gated_delta, wide": gated_delta(key_heads=1, value_heads=2, key_size=128, value_size=64),
    "gated_delta, short": gated_delta(key_heads=1, value_heads=2, key_size=16, value_size=11),
    "kda, whole": kda(heads=1, key_size=64, value_size=21),
    "kda": kda(heads=3, key_size=32, value_size=19, decay_rank=8, gate_rank=6),
    "kda, floor": kda(heads=2, key_size=24, value_size=48, decay_floor=-5.0, joined_conv=True),
}
LENGTHS = (37, 1, 2, 50)


@pytest.fixture(params=LAYERS)
def spec(request):
    return LAYERS[request.param]


def run(backend, spec, lengths=LENGTHS, seed=4):
    random = torch.Generator().manual_seed(seed)
    sequences = [torch.randn(length, spec.input_size, generator=random) for length in lengths]
    return StateRun(backend, spec, sequences, random)


@pytest.fixture
def backend(kernels):
    return CpuPagedAttention()


def test_states_equal_the_reference(backend, isa, spec):
    for mine, wanted in zip(run(backend, spec).all(), run(TorchSDPA(), spec).all(), strict=True):
        torch.testing.assert_close(mine, wanted, atol=3e-5, rtol=3e-5)


def test_bits_depend_on_the_sequence_alone(native, backend, isa, spec):
    whole = run(backend, spec).all()
    for chunk, threads in ((1, 1), (7, 3)):
        native.pool_init(threads)
        for mine, wanted in zip(run(backend, spec).all(chunk), whole, strict=True):
            assert torch.equal(mine, wanted)
    native.pool_init(2)
    alone = run(backend, spec)
    (last,) = alone.step([(3, 0, 50)])
    assert torch.equal(last, whole[3])


def test_a_state_within_one_block_has_the_bits_of_a_scattered_one(backend, spec):
    scattered = run(backend, spec).all(7)
    sequences = run(backend, spec).sequences
    raw = torch.full((len(sequences) + 1, spec.state_bytes + 8), 255, dtype=torch.uint8)
    params = run(backend, spec).params
    handle = backend.bind_state(spec, STATE_DTYPE, raw, params)
    for index, inputs in enumerate(sequences):
        for start in range(0, len(inputs), 7):
            part = inputs[start : start + 7]
            view = batch_view([len(part)], [start + len(part)], [[index + 1]], 1 << 20)
            out = torch.empty(len(part), spec.output_size)
            backend.forward_state(handle, part, backend.build_state(view), out)
            assert torch.equal(out, scattered[index][start : start + 7])


@pytest.mark.parametrize("block_bytes", [96, 1 << 20], ids=["scattered", "one block"])
def test_a_state_that_moves_in_a_step_keeps_its_bits(backend, spec, block_bytes):
    """The step reads it in the blocks of the first half of the rows of `tables`, or writes it there."""
    tokens = run(backend, spec).sequences[3]
    params = run(backend, spec).params
    count = -(-spec.state_bytes // block_bytes)
    tables = torch.arange(1, 2 * count + 1, dtype=torch.int32).view(2, count)
    outs = []
    for moves in (False, True):
        raw = torch.full((2 * count + 1, block_bytes), 255, dtype=torch.uint8)
        handle = backend.bind_state(spec, STATE_DTYPE, raw, params)
        here, there = tables[0].tolist(), tables[1].tolist()
        rows = []
        for start in range(12):
            target = there if moves and start % 2 else here
            view = batch_view([1], [start + 1], [target + here], 1 << 20)
            view.state_sources = view.block_table[:, count:]
            before = raw[here].clone()
            out = torch.empty(1, spec.output_size)
            backend.forward_state(handle, tokens[start : start + 1], backend.build_state(view), out)
            if target is there:
                assert torch.equal(raw[here], before)
                here, there = there, here
            rows.append(out)
        outs.append(torch.cat(rows))
    assert torch.equal(outs[0], outs[1])


def test_steps_are_recorded_and_replayed_with_other_sequences(backend, spec):
    taken = run(backend, spec, (6, 6))
    expected = [torch.stack(rows) for rows in zip(*taken.all(1), strict=True)]
    again = run(backend, spec, (6, 6))
    inputs = torch.empty(2, spec.input_size)
    out = torch.empty(2, spec.output_size)
    view = batch_view([1, 1], [1, 1], again.tables, 1 << 20)
    metadata = backend.build_state(view)
    tape = None
    for token in range(6):
        inputs.copy_(torch.stack([sequence[token] for sequence in again.sequences]))
        view.seq_lens.fill_(token + 1)
        if tape is None:
            tape = record(lambda: backend.forward_state(again.handle, inputs, metadata, out), 2, 2)
            assert tape is not None
        else:
            tape(2, 2)
        assert torch.equal(out, expected[token])
    inputs.copy_(again.sequences[0][0])
    view.seq_lens.fill_(1)
    view.cu_seqlens_q.copy_(torch.tensor([0, 1, 2]))
    before = out[1].clone()
    tape(1, 1)
    assert torch.equal(out[0], expected[0][0])
    assert torch.equal(out[1], before)


def test_what_does_not_fit_is_refused(backend):
    wide = mamba2(heads=1, head_size=8, state=300)
    reasons = unsupported_state(StateQuery(wide, "cpu"))
    assert [str(reason) for reason in reasons]
    with pytest.raises(PluginError, match="state: needs at most 256"):
        backend.bind_state(wide, STATE_DTYPE, torch.zeros(2, wide.state_bytes, dtype=torch.uint8), {})
    assert unsupported_state(StateQuery(lfm2.short_conv(8, 9), "cpu"))
    layer = LAYERS["short_conv"]
    taken = run(backend, layer, (3,))
    metadata = backend.build_state(batch_view([3], [3], taken.tables, 1 << 20))
    with pytest.raises(ValueError, match="out has 2 rows, expected 3"):
        backend.forward_state(taken.handle, torch.zeros(3, layer.input_size), metadata, torch.zeros(2, 300))


def test_short_convolutions_have_the_bits_of_the_reference(backend, isa):
    spec = LAYERS["short_conv"]
    for mine, wanted in zip(run(backend, spec).all(5), run(TorchSDPA(), spec).all(), strict=True):
        assert torch.equal(mine, wanted)
