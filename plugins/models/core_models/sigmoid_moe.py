"""Experts with unusual routers: Phi-3.5-MoE and LFM2 with experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from core_models import lfm2
from core_runtime.models.configuration import Configuration, configuration
from core_runtime.models.families.row import EXPERTS, NEVER, Family
from core_runtime.models.weight_rules import Rename, modules
from core_runtime.specs.block_spec import BlockSpec
from core_runtime.specs.routing_spec import RoutingSpec


def sparse_mixer(hf_config: Mapping[str, Any], count: int, top_k: int) -> RoutingSpec:
    """Return the routing of Phi-3.5-MoE (SparseMixer), with its jitter."""
    jitter = configuration(hf_config).number("router_jitter_noise", 0.01)
    return RoutingSpec(top_k, "sparse_mixer", renormalize=False, jitter=jitter)


def lfm2_names(given: Mapping[str, Any]) -> Configuration:
    """Return LFM2's configuration with usual keys; `tie_embedding` is an older name."""
    config = configuration(given)
    tied = config.flag("tie_word_embeddings", True)
    num_layers = config.positive("num_hidden_layers")
    kinds = config.list_of("layer_types", str)
    if len(kinds) != num_layers or not set(kinds) <= {"full_attention", "conv"}:
        config.fail("layer_types", kinds, f"full_attention or conv for each of {num_layers} layers")
    return config.overlaid({"tie_word_embeddings": config.flag("tie_embedding", tied)})


def lfm2_routing(hf_config: Mapping[str, Any], count: int, top_k: int) -> RoutingSpec:
    """Return the routing: sigmoids, of which the chosen ones may be divided by their sum."""
    config = configuration(hf_config)
    renormalize = config.flag("norm_topk_prob", True)
    factor = config.number("routed_scaling_factor", 1.0)
    return RoutingSpec(top_k, "sigmoid", renormalize, factor, epsilon=1e-6 if renormalize else 0.0)


def lfm2_block(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    """Remove the correction bias of the choice where the configuration has none."""
    if block.experts is None or configuration(hf_config).flag("use_expert_bias", True):
        return block
    own = msgspec.structs.replace(block.experts, correction=False)
    return msgspec.structs.replace(block, experts=own)


ROWS = (
    Family(
        name="phimoe",
        model_types=("phimoe",),
        architectures=("PhimoeForCausalLM", "PhiMoEForCausalLM"),
        norm="layer",
        norm_bias=True,
        full_every=NEVER,
        biases={"mlp": False, "head": "lm_head_bias"},
        fixed={"num_experts_per_tok": 2},
        expert_names=("block_sparse_moe", "w1", "w3", "w2"),
        routing=sparse_mixer,
        neutral={
            "input_jitter_noise": "of training",
            "original_max_position_embeddings": "its rotary parameters have it",
        },
    ),
    Family(
        name="lfm2_moe",
        model_types=("lfm2_moe",),
        architectures=("Lfm2MoeForCausalLM",),
        neutral=lfm2.NEUTRAL,
        usual=lfm2_names,
        keys={"first_k_dense_replace": "num_dense_layers"},
        tied_by_default=True,
        qk_norm=True,
        state=lfm2.state,
        biases={"mlp": False},
        expert_names=EXPERTS,
        routing=lfm2_routing,
        experts={"correction": True},
        block=lfm2_block,
        weights=(
            Rename(r"feed_forward\.expert_bias$", "mlp.gate.e_score_correction_bias"),
            *modules(
                *lfm2.NAMES,
                ("feed_forward", "mlp"),
                ("w1", "gate_proj"),
                ("w3", "up_proj"),
                ("w2", "down_proj"),
            ),
        ),
    ),
)
