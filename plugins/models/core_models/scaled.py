"""Llamas with scalars for embeddings, branches, scores and logits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from core_runtime.models.configuration import configuration
from core_runtime.models.families.row import Family
from core_runtime.models.weight_rules import WeightRule, modules
from core_runtime.specs.decoder_spec import DecoderSpec

MULTIPLIERS: Final = {
    "embed": "embedding_multiplier",
    "residual": "residual_multiplier",
    "attention": "attention_multiplier",
}


def scaled_by_depth(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    """Set MiniCPM's scalars (arXiv 2404.06395).

    Branches shrink with the root of the depth, logits with the width relative to a small model's.
    """
    config = configuration(hf_config)
    depth = config.optional_number("scale_depth")
    base = config.optional_number("dim_model_base", 1e-6)
    residual = 1.0 if depth is None else depth / math.sqrt(len(spec.blocks))
    logits = 1.0 if base is None else base / spec.hidden_size
    return msgspec.structs.replace(spec, residual_scale=residual, logit_scale=logits)


def names_of_norms(hf_config: Mapping[str, Any], spec: DecoderSpec) -> tuple[WeightRule, ...]:
    """Return the rules for HyperCLOVA X, which numbers the norms after attention and MLP, where it has them."""
    if not configuration(hf_config).flag("use_post_norm"):
        return ()
    return modules(
        ("post_attention_layernorm", "pre_feedforward_layernorm"),
        ("post_norm1", "post_attention_layernorm"),
        ("post_norm2", "post_feedforward_layernorm"),
    )


ROWS = (
    Family(
        name="granite",
        model_types=("granite",),
        architectures=("GraniteForCausalLM",),
        scalars={**MULTIPLIERS, "logits": "1/logits_scaling"},
    ),
    Family(
        name="hyperclovax",
        model_types=("hyperclovax",),
        architectures=("HyperCLOVAXForCausalLM",),
        scalars={**MULTIPLIERS, "logits": "logits_scaling"},
        sandwich_norms="use_post_norm",
        weights=names_of_norms,
    ),
)
