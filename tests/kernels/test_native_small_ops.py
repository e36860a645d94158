"""Norms, rotary, activations and sums against torch; rows alone and in company have the same bits."""

import pytest
import torch
import torch.nn.functional as F

from core_kit.oracles.operations import ALONE, GATES
from core_runtime.layers import activations
from core_runtime.layers.reference import ReferenceKernels

WIDTHS = [1, 15, 16, 64, 100, 576, 1536]


def strided(rows, width):
    return torch.randn(rows, width + 7)[:, :width]


def close(actual, wanted, tolerance=2e-6):
    torch.testing.assert_close(actual.double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm(kernels, isa, width):
    x, weight, out = strided(5, width), torch.randn(width), torch.empty(5, width)
    kernels.rms_norm(x, weight, 1e-5, out)
    close(out, F.rms_norm(x.double(), (width,), weight.double(), 1e-5))
    alone = torch.empty(1, width)
    kernels.rms_norm(x[3:4], weight, 1e-5, alone)
    assert torch.equal(alone[0], out[3])


def test_rms_norm_over_heads_in_place_of_a_fused_projection(kernels, isa):
    qkv = torch.randn(70, 7 * 64)
    q = qkv[:, : 4 * 64].view(70, 4, 64)
    weight, want, rest = torch.randn(64), q.double(), qkv[:, 4 * 64 :].clone()
    kernels.rms_norm_heads(q, weight, 1e-6)
    close(q, F.rms_norm(want, (64,), weight.double(), 1e-6))
    assert torch.equal(qkv[:, 4 * 64 :], rest)


@pytest.mark.parametrize("width", WIDTHS)
def test_layer_norm(kernels, isa, width):
    x, weight, bias, out = strided(5, width) + 7, torch.randn(width), torch.randn(width), torch.empty(5, width)
    kernels.layer_norm(x, weight, bias, 1e-5, out)
    close(out, F.layer_norm(x.double(), (width,), weight.double(), bias.double(), 1e-5), 1e-5)
    kernels.layer_norm(x, weight, None, 1e-5, out)
    close(out, F.layer_norm(x.double(), (width,), weight.double(), None, 1e-5), 1e-5)
    alone = x[3:4].clone()
    kernels.layer_norm(alone, weight, None, 1e-5, alone)
    assert torch.equal(alone[0], out[3])


def test_norms_with_a_weight_for_each_head(kernels, isa):
    x, weight = torch.randn(9, 3, 20), torch.randn(3, 20)
    centred = F.layer_norm(x.double(), (20,), None, None, 1e-4) * weight
    plain = F.rms_norm(x.double(), (20,), None, 1e-4) * weight
    mine = x.clone()
    kernels.layer_norm_heads(mine, weight, None, 1e-4)
    close(mine, centred, 1e-5)
    mine = x.clone()
    kernels.rms_norm_heads(mine, weight, 1e-4)
    close(mine, plain)


@pytest.mark.parametrize(("size", "rotated"), [(64, 64), (256, 256), (20, 20), (64, 32)])
def test_rotary(kernels, isa, size, rotated):
    qkv = torch.randn(40, 5 * size)
    q, k = qkv[:, : 3 * size].view(40, 3, size), qkv[:, 3 * size :].view(40, 2, size)
    angles = torch.rand(128, rotated // 2, dtype=torch.float64) * 6.28
    cos, sin = angles.cos().float(), angles.sin().float()
    positions = torch.randint(0, 128, (40,))
    want = []
    for x in (q.double(), k.double()):
        first, second, rest = x[..., : rotated // 2], x[..., rotated // 2 : rotated], x[..., rotated:]
        c, s = cos[positions].double()[:, None], sin[positions].double()[:, None]
        want.append(torch.cat((first * c - second * s, second * c + first * s, rest), -1))
    reference = qkv.view(40, 5, size).clone()
    ReferenceKernels().rotary(reference[:, :3], reference[:, 3:], cos, sin, positions)
    close(reference, torch.cat(want, 1))
    kernels.rotary(q, k, cos, sin, positions)
    close(q, want[0])
    close(k, want[1])


@pytest.mark.parametrize("width", [1, 100])
@pytest.mark.parametrize("activation", GATES)
def test_activations(kernels, isa, width, activation):
    x, out = strided(6, 2 * width) * 4, torch.empty(6, width)
    kernels.gated(x, activation, out)
    close(out, activations.gated(x, activation).double(), 5e-6)
    if activation in ALONE:
        gate = x[:, :width]
        kernels.activate(gate, activation, out)
        close(out, activations.activate(gate, activation).double(), 5e-6)


@pytest.mark.parametrize("activation", GATES)
def test_activations_far_from_zero(kernels, isa, activation):
    gate = torch.tensor([[-1e4, -200.0, -90.0, -1e-30, 0.0, 90.0, 200.0, 1e4]])
    out, both = torch.empty(1, 8), torch.cat((gate, torch.ones(1, 8)), 1)
    kernels.gated(both, activation, out)
    close(out, activations.gated(both, activation).double(), 1e-5)


@pytest.mark.parametrize("activation", GATES)
def test_what_is_not_a_number_stays_so(kernels, isa, activation):
    x, out = torch.full((1, 34), torch.nan), torch.empty(1, 17)
    kernels.gated(x, activation, out)
    assert out.isnan().all()


@pytest.mark.parametrize("width", WIDTHS)
def test_add_and_scale(kernels, isa, width):
    x, residual = strided(200, width), strided(200, width)
    want = residual + x
    kernels.add(x, residual)
    assert torch.equal(residual, want)
    kernels.scale(residual, 1.7)
    assert torch.equal(residual, want * 1.7)


def test_large_batches_use_the_pool_and_keep_their_bits(native, kernels, isa):
    x, weight, out, again = torch.randn(600, 576), torch.randn(576), torch.empty(600, 576), torch.empty(600, 576)
    kernels.rms_norm(x, weight, 1e-5, out)
    native.pool_init(1)
    kernels.rms_norm(x, weight, 1e-5, again)
    native.pool_init(2)
    assert torch.equal(out, again)


def test_wrong_types_and_sizes_are_refused_by_a_sentence(kernels):
    x, out, positions = torch.randn(2, 16), torch.empty(2, 16), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"weight is .*bfloat16"):
        kernels.rms_norm(x, torch.ones(16).bfloat16(), 1e-5, out)
    with pytest.raises(ValueError, match="out has 1 rows, expected 2"):
        kernels.rms_norm(x, torch.ones(16), 1e-5, out[:1])
    with pytest.raises(ValueError, match=r"expected float32 \[rows, 32\]"):
        kernels.gated(x, "silu", out)
    with pytest.raises(ValueError, match="bias has the shape"):
        kernels.layer_norm(x, torch.ones(16), torch.ones(8), 1e-5, out)
    with pytest.raises(ValueError, match=r"weight has \(3, 16\) elements"):
        kernels.rms_norm_heads(x.view(1, 2, 16), torch.ones(3, 16), 1e-5)
    with pytest.raises(ValueError, match="the layer has no gate"):
        kernels.activate(x, "clamped_swiglu:1:7", out)
    with pytest.raises(ValueError, match=r"positions is .*int32"):
        kernels.rotary(
            x.view(2, 1, 16), x.view(2, 1, 16), out[:, :8].contiguous(), out[:, :8].contiguous(), positions.int()
        )
    with pytest.raises(ValueError, match="at most half of the head size 16"):
        kernels.rotary(x.view(2, 1, 16), x.view(2, 1, 16), out, out, positions)
