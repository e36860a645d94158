"""Functions whose bits depend on their operands alone, not on the operands' position in a tensor.

torch's own `sigmoid`, `silu` and `softplus` compute the last few numbers of a tensor by other code than the rest, and
products of matrices sum in an order that depends on the number of rows. `exp`, `log1p`, `rsqrt`, and sums over the last
dimension of a tensor without gaps have no such differences on a CPU. (On a GPU, torch may divide a sum among threads by
the number of rows.)

Owns: the functions that the ops need. Never does: know an op. Called by: the ops.
"""

from __future__ import annotations

import torch
from torch import Tensor

LINEAR_FROM = 20.0
"""From here on log(1 + exp(x)) equals x in float32."""


def sigmoid(x: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-x)), with the same bits at any position."""
    return 1 / (1 + torch.exp(-x))


def silu(x: Tensor) -> Tensor:
    """Return x * sigmoid(x), with the same bits at any position."""
    return x / (1 + torch.exp(-x))


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + exp(x)), with the same bits at any position."""
    return torch.where(x > LINEAR_FROM, x, torch.log1p(torch.exp(x)))


def rms_norm(x: Tensor, eps: float) -> Tensor:
    """Divide x [..., N] by the root of the mean of its squares."""
    mean = (x * x).sum(-1, keepdim=True) / x.shape[-1]
    return x * torch.rsqrt(mean + eps)


def l2_norm(x: Tensor, eps: float) -> Tensor:
    """Divide x [..., N] by its Euclidean length."""
    squares = (x * x).sum(-1, keepdim=True)
    return x * torch.rsqrt(squares + eps)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """Return [T, N] = x [T, K] times weight [N, K], row by row."""
    out = torch.empty(len(x), len(weight), device=x.device)
    for row, vector in enumerate(x):
        out[row] = torch.mv(weight, vector.clone())
    return out
