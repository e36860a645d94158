"""Hunyuan: rules and neutral keys that its rows share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core_runtime.models.configuration import configuration
from core_runtime.models.families.attention import head_size_of
from core_runtime.models.weight_rules import modules

WEIGHTS: Final = modules(("query_layernorm", "q_norm"), ("key_layernorm", "k_norm"))
NEUTRAL: Final = {
    f"{where}.{key}": "alpha alone stretches the base"
    for where in ("rope_scaling", "rope_parameters")
    for key in ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
}


def with_stretched_base(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace `dynamic` scaling with an `alpha` by a larger base: it does not depend on any length."""
    config = configuration(hf_config)
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    rope = config.mapping(key)
    older = rope.get("type")
    alpha = rope.optional_number("alpha", 0.0)
    if rope.get("rope_type", older) != "dynamic" or not alpha:
        return config
    size = head_size_of(config)
    base = rope.number("rope_theta", config.number("rope_theta", 10000.0))
    stretched = base * alpha ** (size / (size - 2))
    return config.overlaid({key: {"rope_type": "default", "rope_theta": stretched}})
