"""openPangu: a llama with biases (Embedded), and latent attention with experts and norms on both sides (Ultra MoE)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from core_models.deepseek import LATENT_NEUTRAL
from core_runtime.models.configuration import Configuration, configuration
from core_runtime.models.families.row import EXPERTS, Family
from core_runtime.models.weight_rules import modules
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.routing_spec import RoutingSpec

NORMS = modules(
    ("pre_mlp_layernorm", "pre_feedforward_layernorm"), ("post_mlp_layernorm", "post_feedforward_layernorm")
)


def biased(hf_config: Mapping[str, Any]) -> Configuration:
    """Return the configuration of openPangu Embedded: `bias` is that of all projections of attention, and `qkv_bias`
    replaces it for queries, keys and values.
    """
    config = configuration(hf_config)
    bias = config.flag("attention_bias") or config.flag("bias")
    inner = config.flag("qkv_bias", bias)
    return config.overlaid({"out_bias": bias, "inner_bias": inner})


def by_sigmoid(hf_config: Mapping[str, Any], count: int, top_k: int) -> RoutingSpec:
    """Return the routing: by sigmoid, without groups and without a bias of the choice."""
    config = configuration(hf_config)
    return RoutingSpec(
        top_k, "sigmoid", config.flag("norm_topk_prob", True), config.number("routed_scaling_factor", 1.0)
    )


def latents_normed_alike(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    """Give the norms of latents the epsilon of all others."""
    return msgspec.structs.replace(spec, heads=msgspec.structs.replace(spec.heads, latent_eps=spec.norm.eps))


ROWS = (
    Family(
        name="pangu_embedded",
        model_types=("PanguEmbedded", "pangu_embedded"),
        architectures=("PanguEmbeddedForCausalLM",),
        usual=biased,
        sandwich_norms="sandwich_norm",
        biases={
            "query": "inner_bias",
            "key": "inner_bias",
            "value": "inner_bias",
            "out": "out_bias",
            "mlp": "mlp_bias",
        },
        weights=NORMS,
    ),
    Family(
        name="pangu_ultra_moe",
        model_types=("pangu_ultra_moe",),
        architectures=("PanguUltraMoEForCausalLM",),
        keys={
            "n_routed_experts": "num_routed_experts",
            "first_k_dense_replace": "num_dense_layers",
            "n_shared_experts": "num_shared_experts",
            "q_lora_rank": "attention_q_lora_dim",
            "kv_lora_rank": "attention_kv_lora_dim",
            "qk_rope_head_dim": "attention_qk_rope_dim",
            "qk_nope_head_dim": "attention_qk_dim",
            "v_head_dim": "attention_v_dim",
            "num_nextn_predict_layers": "num_mtp_layers",
        },
        neutral={**LATENT_NEUTRAL, 'scoring_func = "sigmoid"': "the only way"},
        sandwich_norms="sandwich_norm",
        latent=True,
        expert_names=EXPERTS,
        routing=by_sigmoid,
        adjust=latents_normed_alike,
        weights=NORMS,
    ),
)
