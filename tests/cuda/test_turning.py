"""Heads that are normed and turned in the launch that stores keys: the bits of the three kernels one after the other."""

import pytest
import torch

from core.api.specs import AttentionSpec
from core_kit.oracles.numbers import generator
from core_kit.oracles.reference import batch_view
from core_kit.oracles.turning import turns
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.linear import Linear
from core_runtime.layers.reference import ReferenceKernels
from core_runtime.layers.workspace import Workspace
from core_runtime.models.mixers.attention import AttentionMixer
from core_runtime.specs.block_spec import HeadsSpec
from core_runtime.weights.formats import Dense

pytest.importorskip("triton")
from core_attention.triton.backend import TritonAttention
from core_kernels.triton.kernels import TritonKernels

SPEC = AttentionSpec(6, 2, 32, 32, 0.17)
ROWS = 3
KERNELS = TritonKernels()


def _bound(dtype: str):
    backend = TritonAttention()
    raw = torch.zeros(2, backend.kv_layout(SPEC, 16, dtype).block_bytes, dtype=torch.uint8)
    return backend, raw, backend.bind(SPEC, 16, dtype, raw)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8_per_token_head"])
@pytest.mark.parametrize("number", range(3), ids=["turned", "normed", "normed by head, turned in part"])
def test_one_launch_has_the_bits_of_three(dtype: str, number: int) -> None:
    random = generator("turned bits")
    turn = [turn for _, turn in turns(SPEC, random)][number]
    q, k, v = [torch.randn(ROWS, heads, 32, generator=random).bfloat16() for heads in (6, 2, 2)]
    positions = torch.tensor([40, 3, 11])
    view = batch_view([ROWS], [ROWS], [[1]], 16)
    view.slot_mapping[1] = -1  # a padded row

    backend, raw, handle = _bound(dtype)
    together = q.clone()
    backend.turn_and_write(handle, together, k.clone(), v, turn, positions, backend.build(view))
    expected_backend, expected_raw, expected_handle = _bound(dtype)
    if turn.q_weight is not None:
        KERNELS.rms_norm_heads(q, turn.q_weight, turn.eps)
        KERNELS.rms_norm_heads(k, turn.k_weight, turn.eps)
    KERNELS.rotary(q, k, turn.cos, turn.sin, positions)
    expected_backend.write(expected_handle, k, v, expected_backend.build(view))
    assert torch.equal(together, q)
    assert torch.equal(raw, expected_raw) and raw.any()


class Noted(TritonAttention):
    """Remembers by which calls keys were stored."""

    def __init__(self):
        super().__init__(1)
        self.calls = []

    def write(self, *args):
        self.calls.append("write")
        super().write(*args)

    def turn_and_write(self, *args):
        self.calls.append("turn_and_write")
        super().turn_and_write(*args)


def _attended(kernels: KernelSet, **heads) -> tuple[list[str], torch.Tensor]:
    """What a mixer makes of three tokens, and the calls that stored their keys."""
    random = generator("mixer")
    reference = ReferenceKernels()
    qkv = Linear([reference.linear(Dense(torch.randn(10 * 32, 64, generator=random)), activation="none")])
    o = Linear([reference.linear(Dense(torch.randn(64, 6 * 32, generator=random)), activation="none")])
    mixer = AttentionMixer(SPEC, HeadsSpec(**heads), kernels, {"qkv": qkv, "o": o}, {})
    workspace = Workspace(torch.device("cpu"))
    workspace.reserve("qkv", ROWS, 10 * 32, torch.float32)
    workspace.reserve("attention", ROWS, 6 * 32, torch.float32)
    angles = torch.rand(16, 16, generator=random)
    mixer.attach(workspace, (angles.cos(), angles.sin()))
    backend = Noted()
    raw = torch.zeros(2, backend.kv_layout(SPEC, 16, "float32").block_bytes, dtype=torch.uint8)
    mixer.bind(backend, backend.bind(SPEC, 16, "float32", raw))
    out = torch.empty(ROWS, 64)
    view = backend.build(batch_view([ROWS], [ROWS], [[1]], 16))
    mixer(torch.randn(ROWS, 64, generator=random), torch.arange(ROWS), view, out, accumulate=False)
    return backend.calls, out


def test_heads_are_turned_together_where_the_same_provider_turns_them() -> None:
    """The kernels that a user chose stay the ones that compute."""
    calls, out = _attended(KernelSet([KERNELS]))
    assert calls == ["turn_and_write"]
    others, expected = _attended(KernelSet([]))
    assert others == ["write"]
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
    bounded, _ = _attended(KernelSet([KERNELS]), clip=3.0)
    assert bounded == ["write"]
