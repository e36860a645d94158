"""Gemma: norms with an offset, scaled embeddings, windows, soft caps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core_runtime.models.configuration import configuration
from core_runtime.models.families.row import Family
from core_runtime.models.weight_rules import modules


def with_approximate_gelu(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace `gelu` by its tanh approximation: the first Gemmas were published with the wrong name."""
    config = configuration(hf_config)
    if config.get("hidden_act") == "gelu":
        return config.overlaid({"hidden_act": "gelu_pytorch_tanh"})
    return config


ROWS = (
    Family(
        name="gemma",
        model_types=("gemma",),
        architectures=("GemmaForCausalLM",),
        usual=with_approximate_gelu,
        tied_by_default=True,
        norm_offset=1.0,
        scale_embedding=True,
    ),
    Family(
        name="gemma2",
        model_types=("gemma2",),
        architectures=("Gemma2ForCausalLM",),
        neutral={"hidden_act": "hidden_activation says it"},
        tied_by_default=True,
        norm_offset=1.0,
        sandwich_norms=True,
        scale_embedding=True,
        full_every=2,
    ),
    Family(
        name="vaultgemma",
        model_types=("vaultgemma",),
        architectures=("VaultGemmaForCausalLM",),
        tied_by_default=True,
        norm_offset=1.0,
        scale_embedding=True,
        full_every=2,
        weights=modules(("pre_feedforward_layernorm", "post_attention_layernorm")),
    ),
    Family(
        name="gemma3",
        model_types=("gemma3_text",),
        architectures=("Gemma3ForCausalLM",),
        wrappers=("gemma3",),
        fixed={"attn_logit_softcapping": None},  # its own code has the key and ignores it
        tied_by_default=True,
        norm_offset=1.0,
        qk_norm=True,
        sandwich_norms=True,
        scale_embedding=True,
        full_every=6,
    ),
)
