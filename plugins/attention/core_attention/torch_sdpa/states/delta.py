"""The delta rule, which `gated_delta` and `kda` share.

Owns: queries and keys of unit length, and one token's update. Never does: know where decays and gates come from.
Called by: both ops.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from core_attention.torch_sdpa.states.convolution import Convolution
from core_attention.torch_sdpa.states.functions import l2_norm


def convolution(params: Mapping[str, Tensor]) -> Convolution:
    """Of q, k and v side by side, whose taps may be one tensor or three."""
    weight = params.get("conv1d.weight")
    if weight is None:
        parts = [params[f"{part}_conv1d.weight"] for part in "qkv"]
        weight = torch.cat(parts)
    return Convolution(weight, None)


def unit_heads(q: Tensor, k: Tensor, size: int, eps: float) -> tuple[Tensor, Tensor]:
    """q and k [T, heads, size] of unit length, q scaled, of q and k [T, heads·size]."""
    q = l2_norm(q.unflatten(1, (-1, size)), eps)
    k = l2_norm(k.unflatten(1, (-1, size)), eps)
    return q * size**-0.5, k


def token(state: Tensor, decay: Tensor, q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """o [n, ..., V] of one token; state [n, ..., V, K] moves on.

    decay [n, ..., 1, 1 or K]; q, k [n, ..., 1, K]; v [n, ..., V]; beta [n, ..., 1]. Dimensions may be 1 in place of the
    state's.
    """
    state.mul_(decay)
    known = (state * k).sum(-1)
    correction = beta * (v - known)
    state.add_(correction.unsqueeze(-1) * k)
    return (state * q).sum(-1)
