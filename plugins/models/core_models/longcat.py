"""LongCat Flash: two attentions and two MLPs in a layer, whose experts are computed beside them (arXiv 2509.01322).

A layer is two blocks here. The experts read what the first MLP reads, and their output is added after the second one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from core_models.deepseek import LATENT_NEUTRAL
from core_runtime.models.configuration import Configuration, configuration
from core_runtime.models.families.row import EXPERTS, Family
from core_runtime.models.weight_rules import Ignored, Rename, WeightRule, modules
from core_runtime.specs.block_spec import BlockSpec, HeadsSpec
from core_runtime.specs.decoder_spec import DecoderSpec


def usual(hf_config: Mapping[str, Any]) -> Configuration:
    """Return the configuration of the blocks: the first one of two has experts, and the first MLP as a shared one."""
    config = configuration(hf_config)
    count = config.positive("num_layers")
    values = {
        "num_hidden_layers": 2 * count,
        "mlp_layer_types": ["sparse", "dense"] * count,
        "shared_intermediate_size": config.positive("intermediate_size"),
    }
    return config.overlaid(values)


def late_experts(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    """Add the choices that return their input, and the output of experts only after the next block."""
    if block.experts is None:
        return block
    config = configuration(hf_config)
    identities = config.count("zero_expert_num", 0)
    experts = msgspec.structs.replace(block.experts, identities=identities, late=True)
    return msgspec.structs.replace(block, experts=experts)


def scaled_latents(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    """Multiply latents with the root of the hidden size over their own."""
    config = configuration(hf_config)
    ranks = (config.positive("q_lora_rank"), config.positive("kv_lora_rank"))
    queries, keys = (math.sqrt(spec.hidden_size / rank) for rank in ranks)
    heads: HeadsSpec = msgspec.structs.replace(spec.heads, latent_scales=(queries, keys))
    return msgspec.structs.replace(spec, heads=heads)


def weights(hf_config: Mapping[str, Any], spec: DecoderSpec) -> tuple[WeightRule, ...]:
    """Return the rules for tensor names: the parts of layer n are those of blocks 2n and 2n + 1."""
    config = configuration(hf_config)
    experts = config.count("n_routed_experts")
    identities = range(experts, experts + config.count("zero_expert_num", 0))
    rules: list[WeightRule] = [Ignored(r"model\.mtp\..*", "layers that draft")]
    if identities:
        numbers = "|".join(map(str, identities))
        unused = rf"model\.layers\.\d+\.mlp\.experts\.({numbers})\..*"
        rules.append(Ignored(unused, "of a choice that returns its input"))
    for layer in range(len(spec.blocks) // 2):
        prefix = rf"^model\.layers\.{layer}\."
        for half in range(2):
            block = f"blocks.{2 * layer + half}."
            for module in ("self_attn", "input_layernorm", "post_attention_layernorm"):
                rules.append(Rename(rf"{prefix}{module}\.{half}\.", f"{block}{module}."))
        rules.append(Rename(rf"{prefix}mlps\.0\.", f"blocks.{2 * layer}.mlp.shared_experts."))
        rules.append(Rename(rf"{prefix}mlps\.1\.", f"blocks.{2 * layer + 1}.mlp."))
        rules.append(Rename(rf"{prefix}mlp\.", f"blocks.{2 * layer}.mlp."))
    rules.append(Rename(r"^blocks\.", "model.layers."))
    rules += modules(("mlp.router.classifier", "mlp.gate"), ("mlp.router", "mlp.gate"))
    return tuple(rules)


ROWS = (
    Family(
        name="longcat_flash",
        model_types=("longcat_flash",),
        architectures=("LongcatFlashForCausalLM",),
        neutral={
            **LATENT_NEUTRAL,
            "num_hidden_layers": "num_layers says it",
            "router_bias = false": "the only way",
            'zero_expert_type = "identity"': "the only way",
            "mla_scale_q_lora = true": "the only way",
            "mla_scale_kv_lora = true": "the only way",
            'attention_method = "MLA"': "the only way",
        },
        usual=usual,
        eps_default=1e-5,
        latent=True,
        expert_names=EXPERTS,
        renormalize=False,
        routing="corrected_softmax",
        block=late_experts,
        adjust=scaled_latents,
        weights=weights,
    ),
)
