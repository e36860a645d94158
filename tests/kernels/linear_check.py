"""What every packed product must do: equal float64 arithmetic to rounding, and give a row the same bits in any company."""

import torch

from core_runtime.layers.reference import inputs_by_group, quantized_activations


def expected(weight, activation, x):
    if activation == "int8":
        x = inputs_by_group(x, weight)
    elif activation == "int8_row":
        x = quantized_activations(x, x.shape[1])
    elif activation == "bf16":
        x = x.bfloat16()
    return x.double() @ weight.dequantize().double().T


def check(kernels, weight, activation, rows=11, tolerance=3e-6, product_weight=None):
    """product_weight: what the product is said to take instead of `weight`, when that is rounded."""
    n, k = weight.shape
    bias = torch.randn(n)
    linear = kernels.linear(weight, activation=activation, bias=bias)
    assert linear.shape == (n, k)
    x = torch.randn(rows, k + 5)[:, :k]
    wide = torch.full((rows, n + 3), 7.0)
    linear(x, wide[:, :n])
    want = expected(product_weight or weight, activation, x) + bias
    assert (wide[:, :n] - want).abs().max() <= tolerance * want.abs().max()
    assert (wide[:, n:] == 7.0).all()
    before = torch.randn(rows, n)
    added = before.clone()
    linear(x, added, accumulate=True)
    torch.testing.assert_close(added, before + wide[:, :n], rtol=1e-5, atol=1e-5)
    alone = torch.empty(1, n)
    for row in range(rows):
        linear(x[row : row + 1], alone)
        assert torch.equal(alone[0], wide[row, :n])
    ids = torch.randint(0, n, (9,))
    gathered = torch.empty(9, k)
    linear.rows(ids, gathered)
    assert torch.equal(gathered, weight.dequantize()[ids])
