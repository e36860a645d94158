"""OLMo: norms after attention and MLP, or norms without weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core_runtime.models.configuration import configuration
from core_runtime.models.families.row import Family, HeadNorm


def scaled_where_full(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the configuration with an older key `rope_scaling` applied to the full-attention layers only."""
    config = configuration(hf_config)
    scaling = config.mapping("rope_scaling")
    if not scaling:
        return config
    parameters = config.mapping("rope_parameters")
    wide = {**parameters.mapping("full_attention"), **scaling}
    near = dict(parameters.mapping("sliding_attention"))
    by_kind = {"full_attention": wide, "sliding_attention": near}
    return config.overlaid({"rope_parameters": by_kind, "rope_scaling": None})


ROWS = (
    Family(
        name="olmo",
        model_types=("olmo",),
        architectures=("OlmoForCausalLM",),
        norm="layer",
        norm_weighted=False,
        fixed={"rms_norm_eps": 1e-5},  # hard-coded in its own code
        biases={"mlp": False},
        clip="clip_qkv",
    ),
    Family(
        name="olmo2",
        model_types=("olmo2",),
        architectures=("Olmo2ForCausalLM",),
        order="post",
        qk_norm=HeadNorm(over="all"),
        biases={"mlp": False},
    ),
    Family(
        name="olmo3",
        model_types=("olmo3",),
        architectures=("Olmo3ForCausalLM",),
        usual=scaled_where_full,
        order="post",
        qk_norm=HeadNorm(over="all"),
        biases={"mlp": False},
        full_every=4,
    ),
)
