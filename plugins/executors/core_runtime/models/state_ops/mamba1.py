"""The op `mamba1`: a selective state-space layer, a decay for each channel and number of the state (Gu and Dao 2023,
arXiv 2312.00752).

Owns: its meaning, and its spec. Never does: compute. Called by: families with such layers (Mamba, Falcon-Mamba, Jamba).

D channels with N numbers of state each; R is the rank of dt. Inputs of a token, side by side: x [D], z [D].

    x = silu(convolution(x))                                               [D]
    r, B, C = x_proj·x                                                     [R], [N], [N]
    r, B, C = rms(r), rms(B), rms(C)                                       unless norm is `none`
    dt = softplus(dt_proj·r + dt_proj's bias)                              [D]
    h  = exp(-exp(A_log)·dt)·h + (dt·x) ⊗ B                                [D, N]
    y  = h·C + D·x                                                         [D]
    out = y·silu(z)

`rms` divides by sqrt(mean of squares + `norm_eps`) over the whole vector; with norm `weighted` (Jamba) each is then
multiplied with its weight, with `plain` (Falcon-Mamba) it is not. State: window [kernel - 1, D] of x; then h [D, N].

sizes:   channels (D), state (N), rank (R), kernel.
numbers: norm_eps.
choices: norm.
params:  conv1d.weight [D, 1, kernel]; conv1d.bias [D] if there is one; x_proj.weight [R + 2·N, D];
         dt_proj.weight [D, R]; dt_proj.bias [D]; A_log [D, N]; D [D];
         dt_layernorm.weight [R], b_layernorm.weight [N], c_layernorm.weight [N] where norm is `weighted`.
"""

from __future__ import annotations

from typing import Literal

from core.api.specs import StateSpec

Norm = Literal["none", "plain", "weighted"]


def mamba1(
    *,
    channels: int,
    state: int,
    rank: int,
    kernel: int = 4,
    norm: Norm = "none",
    norm_eps: float = 1e-6,
    conv_bias: bool = True,
    bias: bool = False,
) -> StateSpec:
    """Return the spec of a layer with the op. bias: whether both projections around it have a bias."""
    params: dict[str, tuple[int, ...]] = {"conv1d.weight": (channels, 1, kernel)}
    if conv_bias:
        params["conv1d.bias"] = (channels,)
    params["x_proj.weight"] = (rank + 2 * state, channels)
    params["dt_proj.weight"] = (channels, rank)
    params["dt_proj.bias"] = (channels,)
    params["A_log"] = (channels, state)
    params["D"] = (channels,)
    if norm == "weighted":
        params["dt_layernorm.weight"] = (rank,)
        params["b_layernorm.weight"] = (state,)
        params["c_layernorm.weight"] = (state,)
    return StateSpec(
        op="mamba1",
        inputs={"in_proj": 2 * channels},
        output_size=channels,
        state_size=(kernel - 1) * channels + channels * state,
        sizes={"channels": channels, "state": state, "rank": rank, "kernel": kernel},
        numbers={"norm_eps": norm_eps},
        choices={"norm": norm},
        params=params,
        bias=bias,
    )
