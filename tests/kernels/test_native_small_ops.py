"""Norms, rotary, activations and sums against torch; rows alone and in company have the same bits."""

import pytest
import torch
import torch.nn.functional as F

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
    kernels.rotary(q, k, cos, sin, positions)
    close(q, want[0])
    close(k, want[1])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_activation(kernels, isa, width, activation):
    x, out = strided(6, 2 * width) * 4, torch.empty(6, width)
    kernels.gated(x, activation, out)
    gate, up = x.double().chunk(2, -1)
    close(out, (F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")) * up, 5e-6)


def test_gated_activation_far_from_zero(kernels, isa):
    gate = torch.tensor([[-1e4, -200.0, -90.0, -1e-30, 0.0, 90.0, 200.0, 1e4]])
    out = torch.empty(1, 8)
    kernels.gated(torch.cat((gate, torch.ones(1, 8)), 1), "silu", out)
    close(out, F.silu(gate.double()), 1e-5)


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
    with pytest.raises(ValueError, match=r"positions is .*int32"):
        kernels.rotary(
            x.view(2, 1, 16), x.view(2, 1, 16), out[:, :8].contiguous(), out[:, :8].contiguous(), positions.int()
        )
    with pytest.raises(ValueError, match="at most half of the head size 16"):
        kernels.rotary(x.view(2, 1, 16), x.view(2, 1, 16), out, out, positions)
