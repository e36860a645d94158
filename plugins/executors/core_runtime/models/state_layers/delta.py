"""Families with the delta rule: Qwen3-Next, Qwen3.5 and OLMo Hybrid (`gated_delta`), Kimi Linear (`kda`).

Owns: the names of its sizes in each. Never does: know an op's formula, or names of tensors. Called by: rows of
these families.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core.api.specs import StateSpec
from core_runtime.models.configuration import configuration, positive
from core_runtime.models.state_layers import values
from core_runtime.models.state_ops.gated_delta import FUSED, SEPARATE, fused_orders, gated_delta
from core_runtime.models.state_ops.kda import kda

OLMO: Final = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "g_proj": "z", "b_proj": "b", "a_proj": "a"}


def qwen3_next(hf_config: Mapping[str, Any], index: int) -> StateSpec | None:
    """Return the state of a layer in Qwen3-Next: three of four layers, unless the configuration says otherwise.

    See `fused_orders` for its projections.
    """
    return _qwen(hf_config, index, FUSED)


def qwen3_5(hf_config: Mapping[str, Any], index: int) -> StateSpec | None:
    """Return the state of a layer in the text model of Qwen3.5, as in Qwen3-Next but with separate projections."""
    return _qwen(hf_config, index, SEPARATE)


def olmo_hybrid(hf_config: Mapping[str, Any], index: int) -> StateSpec | None:
    """Return the state of a layer in OLMo Hybrid: three of four layers, unless the configuration says otherwise.

    Its checkpoints name the output `o_proj`.
    """
    num_layers = positive(hf_config, "num_hidden_layers", 32)
    alone = index == num_layers - 1 and num_layers < 4
    default = "full_attention" if index % 4 == 3 or alone else "linear_attention"
    if values.kind(hf_config, index, default) not in values.LINEAR:
        return None
    values.demand(hf_config, "hidden_act", "silu")
    heads = positive(hf_config, "num_attention_heads", 30)
    key_heads = positive(hf_config, "linear_num_key_heads", heads)
    hidden = positive(hf_config, "hidden_size", 3840)
    key_size = positive(hf_config, "linear_key_head_dim", int(0.75 * hidden / key_heads))
    return gated_delta(
        key_heads=key_heads,
        value_heads=positive(hf_config, "linear_num_value_heads", heads),
        key_size=key_size,
        value_size=positive(hf_config, "linear_value_head_dim", 2 * key_size),
        kernel=positive(hf_config, "linear_conv_kernel_dim", 4),
        norm_eps=1e-5,
        beta_scale=2.0 if values.flag(hf_config, "linear_allow_neg_eigval", True) else 1.0,
        projections=OLMO,
        joined_conv=False,
    )


def kimi_linear(hf_config: Mapping[str, Any], index: int) -> StateSpec | None:
    """Return the state of a layer in Kimi Linear.

    `linear_attn_config` lists the layers, counted from 1, or `layer_types` does. Otherwise every fourth layer from the
    fifth on has none.
    """
    inner = configuration(hf_config).mapping("linear_attn_config")
    default = "full_attention" if index and index % 4 == 0 else "linear_attention"
    if "full_attn_layers" in inner:
        full = inner.list_of("full_attn_layers", int)
        default = "full_attention" if index + 1 in full else "linear_attention"
    if values.kind(hf_config, index, default) not in values.LINEAR:
        return None
    values.demand(hf_config, "hidden_act", "silu")
    size = positive(inner, "head_dim", hf_config.get("linear_head_dim", 128))
    heads = positive(inner, "num_heads", hf_config.get("linear_num_heads", 32))
    return kda(
        heads=heads,
        key_size=size,
        value_size=size,
        kernel=positive(inner, "short_conv_kernel_size", hf_config.get("linear_conv_kernel_dim", 4)),
        decay_rank=size,
        gate_rank=size,
        rate_shape=(1, 1, heads, 1),
        norm_eps=values.number(hf_config, "rms_norm_eps", 1e-5),
    )


def _qwen(hf_config: Mapping[str, Any], index: int, projections: Mapping[str, str]) -> StateSpec | None:
    interval = positive(hf_config, "full_attention_interval", 4)
    default = "linear_attention" if (index + 1) % interval else "full_attention"
    if values.kind(hf_config, index, default) not in values.LINEAR:
        return None
    values.demand(hf_config, "hidden_act", "silu")
    key_heads = positive(hf_config, "linear_num_key_heads", 16)
    value_heads = positive(hf_config, "linear_num_value_heads", 32)
    key_size = positive(hf_config, "linear_key_head_dim", 128)
    value_size = positive(hf_config, "linear_value_head_dim", 128)
    orders = None
    if projections is FUSED:
        orders = fused_orders(key_heads, value_heads, key_size, value_size)
    return gated_delta(
        key_heads=key_heads,
        value_heads=value_heads,
        key_size=key_size,
        value_size=value_size,
        kernel=positive(hf_config, "linear_conv_kernel_dim", 4),
        norm_eps=values.number(hf_config, "rms_norm_eps", 1e-6),
        projections=projections,
        orders=orders,
    )
