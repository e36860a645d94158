"""The op `gated_delta`: linear attention by the delta rule, with one decay a head (Yang et al. 2024, arXiv 2412.06464).

Owns: its meaning, its spec, and the order of rows in which some checkpoints store its projections. Never does: compute.
Called by: families with such layers (Qwen3-Next, Qwen3.5, OLMo Hybrid).

Hk key heads of K numbers and Hv value heads of V numbers; value head h reads key head h // (Hv / Hk). Inputs of a token,
side by side: q [Hk·K], k [Hk·K], v [Hv·V], z [Hv·V], b [Hv], a [Hv].

    q, k, v = silu(convolution(q, k, v))                                   no bias
    q = q / sqrt(sum of q² + `qk_eps`) / sqrt(K)                           each head of its own
    k = k / sqrt(sum of k² + `qk_eps`)
    beta  = `beta_scale`·sigmoid(b)                                        [Hv]
    S = exp(-exp(A_log)·softplus(a + dt_bias))·S                           [Hv, V, K]
    S = S + (beta·(v - S·k)) ⊗ k                                           with S from the line above
    o = S·q                                                                [Hv, V]
    out = weight·o / sqrt(mean of o² + `norm_eps`)·silu(z)                 each head of its own

State: window [kernel - 1, 2·Hk·K + Hv·V] of q, k, v; then S [Hv, V, K].

sizes:   key_heads (Hk), value_heads (Hv), key_size (K), value_size (V), kernel.
numbers: norm_eps, qk_eps, beta_scale (absent: 1).
params:  conv1d.weight [2·Hk·K + Hv·V, 1, kernel], or its parts q_conv1d.weight, k_conv1d.weight and v_conv1d.weight;
         A_log, dt_bias [Hv]; norm.weight [V].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from core.api.errors import UserError
from core.api.specs import Groups, StateSpec

ORDER: Final = "qkvzba"
"""One letter for each part of the inputs, in their order."""
SEPARATE: Final = {"in_proj_qkv": "qkv", "in_proj_z": "z", "in_proj_b": "b", "in_proj_a": "a"}
"""Projections of Qwen3.5 → the parts that each one computes."""
FUSED: Final = {"in_proj_qkvz": "qkvz", "in_proj_ba": "ba"}
"""Projections of Qwen3-Next → the parts that each one computes. Their rows lie key head by key head, see
`fused_orders`.
"""


def gated_delta(
    *,
    key_heads: int,
    value_heads: int,
    key_size: int,
    value_size: int,
    kernel: int = 4,
    norm_eps: float = 1e-6,
    qk_eps: float = 1e-6,
    beta_scale: float = 1.0,
    projections: Mapping[str, str] = SEPARATE,
    joined_conv: bool = True,
    orders: Mapping[str, Groups] | None = None,
) -> StateSpec:
    """Return the spec of a layer with the op. Raises UserError where the sizes do not fit.

    projections: name → letters of the parts that it computes; concatenated, the letters are `ORDER`.
    joined_conv: whether the taps of q, k and v are one tensor.
    orders: see `StateSpec`.
    """
    if value_heads % key_heads:
        raise UserError(
            f"a gated_delta layer has {value_heads} value heads for {key_heads} key heads; expected a multiple of them."
        )
    keys = key_heads * key_size
    values = value_heads * value_size
    widths = {"q": keys, "k": keys, "v": values, "z": values, "b": value_heads, "a": value_heads}
    assert "".join(projections.values()) == ORDER, projections
    numbers = {"norm_eps": norm_eps, "qk_eps": qk_eps}
    if beta_scale != 1:
        numbers["beta_scale"] = beta_scale
    params = conv_params({"q": keys, "k": keys, "v": values}, kernel, joined=joined_conv)
    params.update({"A_log": (value_heads,), "dt_bias": (value_heads,), "norm.weight": (value_size,)})
    return StateSpec(
        op="gated_delta",
        inputs={name: sum(widths[part] for part in parts) for name, parts in projections.items()},
        output_size=values,
        state_size=(kernel - 1) * (2 * keys + values) + values * key_size,
        sizes={
            "key_heads": key_heads,
            "value_heads": value_heads,
            "key_size": key_size,
            "value_size": value_size,
            "kernel": kernel,
        },
        numbers=numbers,
        params=params,
        orders=dict(orders or {}),
    )


def conv_params(channels: Mapping[str, int], kernel: int, *, joined: bool) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the taps: one tensor, or one for each part. channels: channels of each part, in order."""
    if joined:
        return {"conv1d.weight": (sum(channels.values()), 1, kernel)}
    return {f"{part}_conv1d.weight": (width, 1, kernel) for part, width in channels.items()}


def fused_orders(key_heads: int, value_heads: int, key_size: int, value_size: int) -> dict[str, Groups]:
    """Return the order of rows of `FUSED` in a Qwen3-Next checkpoint, by projection.

    The rows go key head by key head: its q, its k, v of its value heads, z of its value heads; and b of its value
    heads, a of its value heads.
    """
    per_key = value_heads // key_heads
    values = per_key * value_size
    return {
        "in_proj_qkvz": Groups(key_heads, (key_size, key_size, values, values)),
        "in_proj_ba": Groups(key_heads, (per_key, per_key)),
    }
