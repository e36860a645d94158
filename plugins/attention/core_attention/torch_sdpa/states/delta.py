"""The delta rule, shared by `gated_delta` and `kda`.

Owns: the normalization of queries and keys, and one token's update. Never does: compute decays and gates.
Called by: both ops.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from core_attention.torch_sdpa.states.convolution import Convolution
from core_attention.torch_sdpa.states.functions import l2_norm


def convolution(params: Mapping[str, Tensor]) -> Convolution:
    """Build the convolution over q, k and v joined; a checkpoint may have one tensor of taps or three."""
    weight = params.get("conv1d.weight")
    if weight is None:
        parts = [params[f"{part}_conv1d.weight"] for part in "qkv"]
        weight = torch.cat(parts)
    return Convolution(weight, None)


def unit_heads(q: Tensor, k: Tensor, size: int, eps: float) -> tuple[Tensor, Tensor]:
    """Split q and k [T, heads·size] into [T, heads, size], normalized to unit length; q is also scaled."""
    q = l2_norm(q.unflatten(1, (-1, size)), eps)
    k = l2_norm(k.unflatten(1, (-1, size)), eps)
    return q * size**-0.5, k


def token(state: Tensor, decay: Tensor, q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """Return o [n, ..., V] of one token and update state [n, ..., V, K] in place.

    decay [n, ..., 1, 1 or K]; q, k [n, ..., 1, K]; v [n, ..., V]; beta [n, ..., 1]. Dimensions of size 1 broadcast
    against the state's.
    """
    state.mul_(decay)
    known = (state * k).sum(-1)
    correction = beta * (v - known)
    state.add_(correction.unsqueeze(-1) * k)
    return (state * q).sum(-1)
