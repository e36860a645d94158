"""Rotary embeddings as configurations describe them. Torch-free.

Owns: its several spellings. Never does: compute angles (`core.layers.rotary` does). Called by: `core.models.families`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from core.api.errors import UserError, nearest
from core.api.specs import RopeSpec


def rope_spec(hf_config: Mapping[str, Any], full: bool, interleaved: bool = False) -> RopeSpec:
    """The rotary embedding of a layer. Raises UserError.

    full: whether the layer sees all keys or a window.
    interleaved: whether the family's pairs are neighbours, unless the configuration says otherwise.
    """
    values = _rope_values(hf_config, full)
    rope_type = _rope_type(values)
    original = values.get("original_max_position_embeddings") or hf_config.get("max_position_embeddings") or 8192
    attention_factor = _attention_factor(values) if rope_type == "yarn" else 1.0
    neighbours = bool(hf_config.get("rope_interleave", True))
    return RopeSpec(
        theta=float(values.get("rope_theta") or 10000.0),
        rope_type=rope_type,
        factor=float(values.get("factor") or 1.0),
        low_freq_factor=float(values.get("low_freq_factor") or 1.0),
        high_freq_factor=float(values.get("high_freq_factor") or 4.0),
        original_max_position=int(original),
        beta_fast=float(values.get("beta_fast") or 32.0),
        beta_slow=float(values.get("beta_slow") or 1.0),
        truncate=bool(values.get("truncate", True)),
        attention_factor=attention_factor,
        interleaved=interleaved and neighbours,
    )


def score_stretch(hf_config: Mapping[str, Any]) -> float:
    """The factor that yarn puts on the scores of latent attention: the square of its `mscale_all_dim` stretch."""
    values = _rope_values(hf_config, full=True)
    if _rope_type(values) != "yarn":
        return 1.0
    return _yarn_stretch(values, "mscale_all_dim") ** 2


def _rope_values(hf_config: Mapping[str, Any], full: bool) -> dict[str, Any]:
    """`rope_parameters` (flat, or by layer type), or the older `rope_theta` with `rope_scaling`."""
    parameters = hf_config.get("rope_parameters")
    kind = "full_attention" if full else "sliding_attention"
    if isinstance(parameters, Mapping):
        of_kind = parameters.get(kind)
        return dict(of_kind if isinstance(of_kind, Mapping) else parameters)
    local = hf_config.get("rope_local_base_freq")
    if local is not None and not full:
        return {"rope_theta": local}
    values = dict(hf_config.get("rope_scaling") or {})
    values["rope_theta"] = hf_config.get("rope_theta", 10000.0)
    return values


def _rope_type(values: Mapping[str, Any]) -> str:
    rope_type = values.get("rope_type") or values.get("type") or "default"
    known = ("default", "linear", "llama3", "yarn")
    if rope_type not in known:
        raise UserError(f"rope_type is '{rope_type}'; known are: {', '.join(known)}.{nearest(str(rope_type), known)}")
    return str(rope_type)


def _yarn_stretch(values: Mapping[str, Any], weight: str) -> float:
    """0.1 w ln(factor) + 1 (YaRN, arXiv 2309.00071, section 3.4), where w is the value named `weight`; 1 without it."""
    factor = float(values.get("factor") or 1.0)
    if factor <= 1.0:
        return 1.0
    w = float(values.get(weight) or 0.0)
    return 0.1 * w * math.log(factor) + 1.0


def _attention_factor(values: Mapping[str, Any]) -> float:
    """The factor of cos and sin: the configuration's own, the ratio of its two mscales, or 0.1 ln(factor) + 1."""
    if values.get("attention_factor") is not None:
        return float(values["attention_factor"])
    if values.get("mscale") and values.get("mscale_all_dim"):
        return _yarn_stretch(values, "mscale") / _yarn_stretch(values, "mscale_all_dim")
    return _yarn_stretch({**values, "mscale": 1.0}, "mscale")
