"""DBRX: flat stacks of experts, fused and clipped projections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core_runtime.models.configuration import Configuration, configuration
from core_runtime.models.families.row import EXPERTS, Family
from core_runtime.models.weight_rules import Stacked, WeightRule, modules
from core_runtime.specs.block_spec import HeadsSpec


def dbrx_names(given: Mapping[str, Any]) -> Configuration:
    """Return the configuration with DBRX's keys of attention and experts, which are in mappings of their own."""
    config = configuration(given)
    attention = config.mapping("attn_config")
    inner = config.mapping("ffn_config")
    size = inner.positive("ffn_hidden_size", 3584)
    power = inner.optional_number("moe_normalize_expert_weights")
    if "moe_normalize_expert_weights" not in inner:
        power = 1.0
    if power not in (None, 1.0):
        inner.fail("moe_normalize_expert_weights", power, "1 (weights are divided by their sum) or null")
    activation = inner.mapping("ffn_act_fn").text("name", "silu")
    values = {
        "num_key_value_heads": attention.positive("kv_n_heads", 1),
        "clip_qkv": attention.optional_number("clip_qkv"),
        "intermediate_size": size,
        "moe_intermediate_size": size,
        "num_local_experts": inner.positive("moe_num_experts", 4),
        "num_experts_per_tok": inner.positive("moe_top_k", 1),
        "norm_topk_prob": power is not None,
        "hidden_act": activation,
    }
    theta = attention.optional_number("rope_theta", 1e-6)
    if theta is not None and not {"rope_theta", "rope_parameters", "rope_scaling"} & set(config):
        values["rope_theta"] = theta  # DBRX's own code reads this key; transformers 5 ignores it
    return config.overlaid(values)


def flat_expert(own: str, piece: str, *, transposed: bool = False) -> tuple[WeightRule, ...]:
    """Return the rule for one matrix of DBRX's experts, [experts * inner, hidden]."""
    pattern = rf"(model\.layers\.\d+)\.ffn\.experts\.mlp\.{own}"
    to = r"\1.mlp.experts.{expert}.{piece}.weight"
    return (Stacked(pattern, to, (piece,), transposed=transposed, flat=True),)


ROWS = (
    Family(
        name="dbrx",
        model_types=("dbrx",),
        architectures=("DbrxForCausalLM",),
        usual=dbrx_names,
        neutral={
            "*.id2label": "of classifiers",
            "*.label2id": "of classifiers",
            "*_config.hidden_size": "the model's",
            "*.*_pdrop": "of training",
            "*.moe_jitter_eps": "of training",
            "*.moe_loss_weight": "of training",
        },
        norm="layer",
        eps_default=1e-5,
        heads=HeadsSpec(fused="rows"),
        clip="clip_qkv",
        biases={"query": False, "key": False, "value": False, "out": False, "mlp": False},
        expert_names=EXPERTS,
        weights=(
            *modules(
                ("transformer.wte", "model.embed_tokens"),
                ("transformer.norm_f", "model.norm"),
                ("transformer.blocks", "model.layers"),
                ("norm_attn_norm.norm_1", "input_layernorm"),
                ("norm_attn_norm.norm_2", "post_attention_layernorm"),
                ("norm_attn_norm.attn.Wqkv", "self_attn.qkv_proj"),
                ("norm_attn_norm.attn.out_proj", "self_attn.o_proj"),
                ("ffn.router.layer", "mlp.gate"),
            ),
            *flat_expert("w1", "gate_proj"),
            *flat_expert("v1", "up_proj"),
            *flat_expert("w2", "down_proj", transposed=True),
        ),
    ),
)
