"""The op `kda`: Kimi Delta Attention, the delta rule with a decay for each channel of the keys (Kimi Linear, Moonshot AI
2025, arXiv 2510.26692).

Owns: its meaning, and its spec. Never does: compute. Called by: families with such layers (Kimi Linear).

H heads with K numbers of key and V of value each. Inputs of a token, side by side: q [H·K], k [H·K], v [H·V],
f [`decay_rank`, or H·K where that is 0], b [H], g [`gate_rank`, or H·V where that is 0].

    q, k, v = silu(convolution(q, k, v))                                   no bias
    q = q / sqrt(sum of q² + `qk_eps`) / sqrt(K)                           each head of its own
    k = k / sqrt(sum of k² + `qk_eps`)
    f = f_b_proj·f, g = g_b_proj·g                                         where their rank is not 0
    f = f + dt_bias                                                        [H, K]
    decay = exp(-exp(A_log)·softplus(f)), or with `decay_floor` (negative):
            exp(`decay_floor`·sigmoid(exp(A_log)·f))                       [H, K]
    beta = sigmoid(b)                                                      [H]
    S = S·decay                                                            [H, V, K]
    S = S + (beta·(v - S·k)) ⊗ k                                           with S from the line above
    o = S·q                                                                [H, V]
    out = weight·o / sqrt(mean of o² + `norm_eps`)·sigmoid(g)              each head of its own

State: window [kernel - 1, 2·H·K + H·V] of q, k, v; then S [H, V, K].

sizes:   heads (H), key_size (K), value_size (V), kernel, decay_rank, gate_rank.
numbers: norm_eps, qk_eps, decay_floor (absent: none).
params:  conv1d.weight [2·H·K + H·V, 1, kernel], or its parts q_conv1d.weight, k_conv1d.weight and v_conv1d.weight;
         f_b_proj.weight [H·K, decay_rank] and g_b_proj.weight [H·V, gate_rank] where these are not 0;
         A_log of H numbers, in any shape; dt_bias [H·K]; o_norm.weight [V].
"""

from __future__ import annotations

from core.api.specs import StateSpec
from core_runtime.models.state_ops.gated_delta import conv_params


def kda(
    *,
    heads: int,
    key_size: int,
    value_size: int,
    kernel: int = 4,
    decay_rank: int = 0,
    gate_rank: int = 0,
    decay_floor: float | None = None,
    norm_eps: float = 1e-5,
    qk_eps: float = 1e-6,
    joined_conv: bool = False,
    rate_shape: tuple[int, ...] | None = None,
) -> StateSpec:
    """Return the spec of a layer with the op.

    joined_conv: whether the taps of q, k and v are one tensor.
    rate_shape: shape of A_log, where it is not [H].
    """
    keys = heads * key_size
    values = heads * value_size
    numbers = {"norm_eps": norm_eps, "qk_eps": qk_eps}
    if decay_floor is not None:
        numbers["decay_floor"] = decay_floor
    params = conv_params({"q": keys, "k": keys, "v": values}, kernel, joined=joined_conv)
    if decay_rank:
        params["f_b_proj.weight"] = (keys, decay_rank)
    if gate_rank:
        params["g_b_proj.weight"] = (values, gate_rank)
    params.update({"A_log": rate_shape or (heads,), "dt_bias": (keys,), "o_norm.weight": (value_size,)})
    decay = "f_a_proj" if decay_rank else "f_proj"
    gate = "g_a_proj" if gate_rank else "g_proj"
    return StateSpec(
        op="kda",
        inputs={
            "q_proj": keys,
            "k_proj": keys,
            "v_proj": values,
            decay: decay_rank or keys,
            "b_proj": heads,
            gate: gate_rank or values,
        },
        output_size=values,
        state_size=(kernel - 1) * (2 * keys + values) + values * key_size,
        sizes={
            "heads": heads,
            "key_size": key_size,
            "value_size": value_size,
            "kernel": kernel,
            "decay_rank": decay_rank,
            "gate_rank": gate_rank,
        },
        numbers=numbers,
        params=params,
    )
