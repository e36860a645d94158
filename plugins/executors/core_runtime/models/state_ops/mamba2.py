"""The op `mamba2`: a state-space layer with one decay a head (Dao and Gu 2024, arXiv 2405.21060).

Owns: its meaning, and its spec. Never does: compute. Called by: families with such layers (Mamba-2, Bamba, Granite 4,
Nemotron-H, Falcon-H1, Zamba2).

H heads of P numbers each, in G groups that share B and C of N numbers; D_inner = H·P, channels = D_inner + 2·G·N.
Inputs of a token, side by side: z [H·P], x [H·P], B [G·N], C [G·N], dt [H]. Before anything else they are multiplied
with `z_scale`, `x_scale`, `b_scale`, `c_scale` and `dt_scale`. The window keeps x, B, C without these scales: a backend
may put them into the taps.

    x, B, C = silu(convolution(x, B, C))
    dt = clamp(softplus(dt + dt_bias), dt_min, dt_max)                     [H]
    h  = exp(-exp(A_log)·dt)·h + (dt·x) ⊗ B                                [H, P, N], B of the head's group
    y  = h·C + D·x                                                         [H, P]
    norm `after_gate`:  out = weight·rms(y·silu(z))
    norm `before_gate`: out = weight·rms(y)·silu(z)
    norm `none`:        out = y·silu(z)

`rms` divides each group of D_inner / `norm_groups` neighbours by sqrt(mean of squares + `norm_eps`). Head h belongs to
group h // (H / G). State: window [kernel - 1, channels] of x, B, C; then h [H, P, N].

sizes:   heads, head_size (P), state (N), groups (G), kernel, norm_groups.
numbers: norm_eps; dt_min and dt_max (absent: no such limit); z_scale, x_scale, b_scale, c_scale, dt_scale (absent: 1).
choices: norm.
params:  conv1d.weight [channels, 1, kernel]; conv1d.bias [channels] if there is one; dt_bias, A_log, D [H];
         norm.weight [D_inner] unless norm is `none`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from core.api.errors import UserError
from core.api.specs import StateSpec

Norm = Literal["after_gate", "before_gate", "none"]
SCALES: Final = ("z_scale", "x_scale", "b_scale", "c_scale", "dt_scale")


def mamba2(
    *,
    heads: int,
    head_size: int,
    state: int,
    groups: int = 1,
    kernel: int = 4,
    norm: Norm = "after_gate",
    norm_groups: int = 1,
    norm_eps: float = 1e-5,
    dt_limits: tuple[float, float] = (0.0, float("inf")),
    scales: Mapping[str, float] | None = None,
    conv_bias: bool = True,
    bias: bool = False,
    output_bias: bool | None = None,
) -> StateSpec:
    """Return the spec of a layer with the op. Raises UserError where the sizes do not fit.

    dt_limits: minimum and maximum dt.
    scales: scales of the inputs, by name in `SCALES`.
    bias, output_bias: see `StateSpec`.
    """
    inner = heads * head_size
    if heads % groups:
        raise UserError(f"a mamba2 layer has {heads} heads in {groups} groups; expected a multiple of the groups.")
    if inner % norm_groups:
        raise UserError(f"a mamba2 layer norms {inner} numbers in {norm_groups} groups; expected a multiple of them.")
    channels = inner + 2 * groups * state
    params: dict[str, tuple[int, ...]] = {"conv1d.weight": (channels, 1, kernel)}
    if conv_bias:
        params["conv1d.bias"] = (channels,)
    params.update({"dt_bias": (heads,), "A_log": (heads,), "D": (heads,)})
    if norm != "none":
        params["norm.weight"] = (inner,)
    return StateSpec(
        op="mamba2",
        inputs={"in_proj": inner + channels + heads},
        output_size=inner,
        state_size=(kernel - 1) * channels + inner * state,
        sizes={
            "heads": heads,
            "head_size": head_size,
            "state": state,
            "groups": groups,
            "kernel": kernel,
            "norm_groups": norm_groups,
        },
        numbers=_numbers(norm_eps, dt_limits, scales or {}),
        choices={"norm": norm},
        params=params,
        bias=bias,
        output_bias=output_bias,
    )


def _numbers(norm_eps: float, dt_limits: tuple[float, float], scales: Mapping[str, float]) -> dict[str, float]:
    """Return the numbers that change the result: neutral ones are left out."""
    numbers = {"norm_eps": norm_eps}
    least, greatest = dt_limits
    if least > 0:
        numbers["dt_min"] = least
    if greatest < float("inf"):
        numbers["dt_max"] = greatest
    for name in SCALES:
        scale = scales.get(name, 1.0)
        if scale != 1:
            numbers[name] = scale
    return numbers
