"""Ling: the experts of DeepSeek with plain attention, under names of their own. The second version scores by sigmoid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from core_models.deepseek import CORRECTED_NEUTRAL
from core_runtime.models.configuration import configuration
from core_runtime.models.families.experts import groups_of
from core_runtime.models.families.row import EXPERTS, Family, HeadNorm
from core_runtime.models.weight_rules import Ignored, UnitRows, WeightRule, modules
from core_runtime.specs.block_spec import BlockSpec, HeadsSpec
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.routing_spec import RoutingSpec

SCORES = {"softmax": "softmax", "sigmoid": "sigmoid"}


def routing(hf_config: Mapping[str, Any], count: int, top_k: int) -> RoutingSpec:
    """Return the routing: by softmax, or by sigmoid within groups."""
    config = configuration(hf_config)
    scores = config.choice("score_function", SCORES, "softmax")
    renormalize = config.flag("norm_topk_prob", True)
    factor = config.number("routed_scaling_factor", 1.0)
    groups, top_groups = groups_of(config, count, top_k)
    if scores == "sigmoid":
        return RoutingSpec(top_k, "sigmoid", renormalize, factor, groups, top_groups, "best_two")
    return RoutingSpec(top_k, "softmax", renormalize, factor, groups, top_groups)


def corrected(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    """Add the bias of the choice where the configuration has one."""
    has_bias = configuration(hf_config).flag("moe_router_enable_expert_bias")
    if block.experts is None or not has_bias:
        return block
    return msgspec.structs.replace(block, experts=msgspec.structs.replace(block.experts, correction=True))


def weights(hf_config: Mapping[str, Any], spec: DecoderSpec) -> tuple[WeightRule, ...]:
    """Return the rules for tensor names; with `norm_head`, the rows of the head have length 1."""
    rules: tuple[WeightRule, ...] = (
        *modules(
            ("model.word_embeddings", "model.embed_tokens"),
            ("attention.query_key_value", "self_attn.qkv_proj"),
            ("attention.dense", "self_attn.o_proj"),
            ("attention.query_layernorm", "self_attn.q_norm"),
            ("attention.key_layernorm", "self_attn.k_norm"),
            ("mlp.gate.expert_bias", "mlp.gate.e_score_correction_bias"),
        ),
        Ignored(r"model\.mtp\..*", "layers that draft"),
    )
    if configuration(hf_config).flag("norm_head"):
        rules += (UnitRows(r"lm_head\.weight"),)
    return rules


ROWS = (
    Family(
        name="bailing_moe",
        model_types=("bailing_moe",),
        architectures=("BailingMoeForCausalLM", "BailingMoeV2ForCausalLM"),
        neutral={
            **CORRECTED_NEUTRAL,
            "moe_shared_expert_intermediate_size": "num_shared_experts says it",
            "moe_router_topk_scaling_factor": "routed_scaling_factor says it",
            "router_dtype": "scores of experts are float32",
            "norm_softmax = false": "the only way",
            "use_rmsnorm = true": "the only way",
            'router_type = "topN"': "the only way",
            "multi_gate = false": "the only way",
        },
        biases={
            "query": "use_qkv_bias",
            "key": "use_qkv_bias",
            "value": "use_qkv_bias",
            "out": "use_bias",
            "mlp": "use_bias",
        },
        heads=HeadsSpec(fused="rows"),
        qk_norm=HeadNorm(key="use_qk_norm"),
        expert_names=EXPERTS,
        routing=routing,
        block=corrected,
        weights=weights,
    ),
)
