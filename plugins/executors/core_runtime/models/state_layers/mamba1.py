"""Families with the op `mamba1`: Mamba, Falcon-Mamba, Jamba.

Owns: the names of its sizes in each. Never does: know an op's formula, or names of tensors. Called by: rows of
these families.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.api.specs import StateSpec
from core_runtime.models.configuration import positive
from core_runtime.models.state_layers import values
from core_runtime.models.state_ops.mamba1 import Norm, mamba1


def mamba(hf_config: Mapping[str, Any], index: int) -> StateSpec:
    """Return the state of a layer in Mamba: every layer has one."""
    return _plain(hf_config, "none", 1e-6)


def falcon_mamba(hf_config: Mapping[str, Any], index: int) -> StateSpec:
    """Return the state of a layer in Falcon-Mamba: every layer has one, with norms that have no weights."""
    return _plain(hf_config, "plain", values.number(hf_config, "mixer_rms_eps", 1e-6))


def jamba(hf_config: Mapping[str, Any], index: int) -> StateSpec | None:
    """Return the state of a layer in Jamba: all layers but one of each `attn_layer_period`."""
    if index % positive(hf_config, "attn_layer_period", 8) == hf_config.get("attn_layer_offset", 4):
        return None
    values.demand(hf_config, "hidden_act", "silu")
    hidden = positive(hf_config, "hidden_size", 4096)
    return mamba1(
        channels=positive(hf_config, "mamba_expand", 2) * hidden,
        state=positive(hf_config, "mamba_d_state", 16),
        rank=values.automatic(hf_config, "mamba_dt_rank", -(-hidden // 16)),
        kernel=positive(hf_config, "mamba_d_conv", 4),
        norm="weighted",
        norm_eps=values.number(hf_config, "rms_norm_eps", 1e-6),
        conv_bias=values.flag(hf_config, "mamba_conv_bias", True),
        bias=values.flag(hf_config, "mamba_proj_bias", False),
    )


def _plain(hf_config: Mapping[str, Any], norm: Norm, norm_eps: float) -> StateSpec:
    values.demand(hf_config, "hidden_act", "silu")
    hidden = positive(hf_config, "hidden_size", 768)
    expanded = int(values.number(hf_config, "expand", 2) * hidden)
    return mamba1(
        channels=positive(hf_config, "intermediate_size", expanded),
        state=positive(hf_config, "state_size", 16),
        rank=values.automatic(hf_config, "time_step_rank", -(-hidden // 16)),
        kernel=positive(hf_config, "conv_kernel", 4),
        norm=norm,
        norm_eps=norm_eps,
        conv_bias=values.flag(hf_config, "use_conv_bias", True),
        bias=values.flag(hf_config, "use_bias", False),
    )
