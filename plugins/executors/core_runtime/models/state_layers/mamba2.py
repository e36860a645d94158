"""Families with the op `mamba2`: Mamba-2, Bamba, Granite 4, Nemotron-H, Falcon-H1, Zamba 2.

Owns: the names of its sizes in each. Never does: know an op's formula, or names of tensors. Called by: rows of
these families.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from core.api.errors import UserError
from core.api.specs import StateSpec
from core_runtime.models.configuration import configuration, positive
from core_runtime.models.state_layers import values
from core_runtime.models.state_ops.mamba2 import SCALES
from core_runtime.models.state_ops.mamba2 import mamba2 as layer

UNLIMITED: Final = (0.0, math.inf)
NEMOTRON_LETTERS: Final = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
FALCON_NORMS: Final = {True: "before_gate", False: "after_gate"}


def mamba2(hf_config: Mapping[str, Any], index: int) -> StateSpec:
    """Return the state of a layer in Mamba-2: every layer has one."""
    values.demand(hf_config, "hidden_act", "silu")
    groups = positive(hf_config, "n_groups", 8)
    least, greatest = values.numbers(hf_config, "time_step_limit", UNLIMITED)
    return layer(
        heads=positive(hf_config, "num_heads", 128),
        head_size=positive(hf_config, "head_dim", 64),
        state=positive(hf_config, "state_size", 128),
        groups=groups,
        kernel=positive(hf_config, "conv_kernel", 4),
        norm_groups=groups,
        norm_eps=values.number(hf_config, "layer_norm_epsilon", 1e-5),
        dt_limits=(least, greatest),
        conv_bias=values.flag(hf_config, "use_conv_bias", True),
        bias=values.flag(hf_config, "use_bias", False),
    )


def bamba(hf_config: Mapping[str, Any], index: int) -> StateSpec | None:
    """Return the state of a layer in Bamba: all layers but `attn_layer_indices`."""
    if index in (hf_config.get("attn_layer_indices") or ()):
        return None
    return _with_prefix(hf_config, _expanded(hf_config), eps=1e-5)


def granitemoehybrid(hf_config: Mapping[str, Any], index: int) -> StateSpec | None:
    """Return the state of a layer in Granite 4: the layers that `layer_types` names, or all without that key."""
    if values.kind(hf_config, index, "mamba") not in values.LINEAR:
        return None
    # The default of Granite's class; Bamba's is 1e-5.
    return _with_prefix(hf_config, _expanded(hf_config), eps=1e-6)


def falcon_h1(hf_config: Mapping[str, Any], index: int) -> StateSpec:
    """Return the state of a layer in Falcon-H1: every layer has one next to its attention.

    `ssm_in_multiplier` is part of the scales; `ssm_out_multiplier` is not.
    """
    bias = values.flag(hf_config, "mamba_proj_bias", False)
    before = values.number(hf_config, "ssm_in_multiplier", 1.0)
    # The multiplier stands before a linear map. Only without a bias can it be applied after it, together with the others.
    if bias and before != 1:
        raise UserError(
            f"ssm_in_multiplier is {before} and mamba_proj_bias is true in the model's configuration; expected a multiplier "
            "of 1, or projections without a bias."
        )
    multipliers = values.numbers(hf_config, "ssm_multipliers", (1.0, 1.0, 1.0, 1.0, 1.0))
    scales = {name: before * multiplier for name, multiplier in zip(SCALES, multipliers, strict=True)}
    normed = values.flag(hf_config, "mamba_rms_norm", False)
    norm = FALCON_NORMS[values.flag(hf_config, "mamba_norm_before_gate", True)] if normed else "none"
    # Without the key, transformers has 1,024; an explicit null means the expanded size.
    told = hf_config.get("mamba_d_ssm", 1024)
    inner = _expanded(hf_config) if told is None else positive(hf_config, "mamba_d_ssm", 1024)
    return _with_prefix(
        hf_config,
        inner,
        eps=1e-5,
        norm=norm,
        scales=scales,
        output_bias=values.flag(hf_config, "projectors_bias", False),
    )


def nemotron_h(hf_config: Mapping[str, Any], index: int) -> StateSpec | None:
    """Return the state of a layer in Nemotron-H: layers named by `layers_block_type` or by the letters of
    `hybrid_override_pattern`.
    """
    letters = configuration(hf_config).text("hybrid_override_pattern", "")
    kinds = [NEMOTRON_LETTERS.get(letter, letter) for letter in letters]
    default = kinds[index] if index < len(kinds) else "mamba"
    if values.kind(hf_config, index, default) not in values.LINEAR:
        return None
    values.demand(hf_config, "mamba_hidden_act", "silu")
    # Configurations of Nemotron-H have the keys of Mamba-2, or the same ones with a prefix; so do the values below.
    groups = positive(hf_config, "mamba_n_groups", hf_config.get("n_groups", 8))
    return layer(
        heads=positive(hf_config, "mamba_num_heads", 128),
        head_size=positive(hf_config, "mamba_head_dim", 64),
        state=positive(hf_config, "ssm_state_size", 128),
        groups=groups,
        kernel=positive(hf_config, "mamba_d_conv", hf_config.get("conv_kernel", 4)),
        norm_groups=groups,
        norm_eps=values.number(hf_config, "layer_norm_epsilon", 1e-5),
        dt_limits=(values.number(hf_config, "mamba_dt_min", hf_config.get("time_step_min", 0.001)), math.inf),
        conv_bias=values.flag(hf_config, "mamba_conv_bias", hf_config.get("use_conv_bias", True)),
        bias=values.flag(hf_config, "use_bias", False),
    )


def zamba2(hf_config: Mapping[str, Any], index: int) -> StateSpec | None:
    """Return the state of a block in Zamba 2: every block but those with attention, see `block_kinds` of its row."""
    if configuration(hf_config).list_of("block_kinds", str)[index] != "state":
        return None
    heads = positive(hf_config, "n_mamba_heads", 8)
    groups = positive(hf_config, "mamba_ngroups", 1)
    return layer(
        heads=heads,
        head_size=_expanded(hf_config) // heads,
        state=positive(hf_config, "mamba_d_state", 64),
        groups=groups,
        kernel=positive(hf_config, "mamba_d_conv", 4),
        norm_groups=groups,
        norm_eps=1e-5,
        dt_limits=(values.number(hf_config, "time_step_min", 0.001), math.inf),
        conv_bias=True,
        bias=values.flag(hf_config, "add_bias_linear", False),
    )


def _expanded(hf_config: Mapping[str, Any]) -> int:
    """Return the size of all heads together, where no key gives it."""
    return positive(hf_config, "mamba_expand", 2) * positive(hf_config, "hidden_size", 4096)


def _with_prefix(hf_config: Mapping[str, Any], inner: int, *, eps: float, **more: Any) -> StateSpec:
    """Return the state of a layer in a family whose keys begin with `mamba_`. inner: size of all heads together. eps:
    the family's own epsilon.
    """
    values.demand(hf_config, "hidden_act", "silu")
    heads = positive(hf_config, "mamba_n_heads", 128)
    groups = positive(hf_config, "mamba_n_groups", 1)
    least, greatest = values.numbers(hf_config, "time_step_limit", UNLIMITED)
    return layer(
        heads=heads,
        head_size=values.automatic(hf_config, "mamba_d_head", inner // heads),
        state=positive(hf_config, "mamba_d_state", 256),
        groups=groups,
        kernel=positive(hf_config, "mamba_d_conv", 4),
        norm_groups=groups,
        norm_eps=values.number(hf_config, "rms_norm_eps", eps),
        dt_limits=(least, greatest),
        conv_bias=values.flag(hf_config, "mamba_conv_bias", True),
        bias=values.flag(hf_config, "mamba_proj_bias", False),
        **more,
    )
