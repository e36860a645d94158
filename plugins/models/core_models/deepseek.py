"""DeepSeek: latent attention and many experts, and families with the same routing of experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from core_models.index import (
    INDEX_NEUTRAL,
    gated_and_indexed,
    gated_index_weights,
    index_weights,
    indexed,
    sometimes_indexed,
)
from core_models.llama import YARN_OF_MINISTRAL3
from core_runtime.models.configuration import configuration
from core_runtime.models.families.experts import groups_of
from core_runtime.models.families.row import EXPERTS, Family, HeadNorm
from core_runtime.models.weight_rules import Ignored, experts, modules
from core_runtime.specs.block_spec import BlockSpec, HeadsSpec
from core_runtime.specs.routing_spec import RoutingSpec

LATENT_NEUTRAL = {
    "head_dim": "the parts of heads have sizes of their own",
    "num_key_value_heads": "every head has keys of its own",
    "qk_head_dim": "the sum of two other sizes",
    "moe_layer_freq = 1": "every layer has experts from the first one on",
}
ORIGINAL_OF_MISTRAL4 = {"original_max_position_embeddings": 8192}
CORRECTED_NEUTRAL = {
    'scoring_func = "sigmoid"': "the only way",
    'topk_method = "noaux_tc"': "the only way",
}


def normed_experts(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    """Normalize the output of experts, but not the output of plain MLPs."""
    return msgspec.structs.replace(block, norm_behind_mlp=block.experts is not None)


def mistral_routing(hf_config: Mapping[str, Any], count: int, top_k: int) -> RoutingSpec:
    """Return the routing of Mistral Small 4: by softmax, within the groups whose two best experts are the best."""
    config = configuration(hf_config)
    groups, top_groups = groups_of(config, count, top_k)
    renormalize = config.flag("norm_topk_prob", True)
    factor = config.number("routed_scaling_factor", 1.0)
    return RoutingSpec(top_k, "softmax", renormalize, factor, groups, top_groups, "best_two")


ROWS = (
    Family(
        name="deepseek_v2",
        model_types=("deepseek_v2",),
        architectures=("DeepseekV2ForCausalLM",),
        neutral={**LATENT_NEUTRAL, 'scoring_func = "softmax"': "the only way"},
        latent=True,
        expert_names=EXPERTS,
        renormalize=False,
    ),
    Family(
        name="deepseek_v3",
        model_types=("deepseek_v3",),
        architectures=("DeepseekV3ForCausalLM",),
        neutral={**LATENT_NEUTRAL, **CORRECTED_NEUTRAL},
        latent=True,
        expert_names=EXPERTS,
        routing="corrected_sigmoid",
    ),
    Family(
        name="deepseek_v32",
        model_types=("deepseek_v32",),
        architectures=("DeepseekV32ForCausalLM",),
        neutral={
            **LATENT_NEUTRAL,
            **CORRECTED_NEUTRAL,
            **INDEX_NEUTRAL,
            "indexer_rope_interleave = false": "the only way",
        },
        latent=True,
        expert_names=EXPERTS,
        routing="corrected_sigmoid",
        block=indexed,
        biases={"mlp": False},
        weights=index_weights,
    ),
    Family(
        name="glm_moe_dsa",
        model_types=("glm_moe_dsa",),
        architectures=("GlmMoeDsaForCausalLM",),
        neutral={
            **LATENT_NEUTRAL,
            **CORRECTED_NEUTRAL,
            **INDEX_NEUTRAL,
            "indexer_rope_interleave = true": "the only way",
        },
        eps_default=1e-5,
        latent=True,
        heads=HeadsSpec(index_pairs=True),
        expert_names=EXPERTS,
        routing="corrected_sigmoid",
        block=sometimes_indexed,
        biases={"mlp": False},
        weights=index_weights,
    ),
    Family(
        name="mistral4",
        model_types=("mistral4",),
        architectures=("Mistral4ForCausalLM",),
        wrappers=("mistral3",),
        defaults={
            "rope_parameters": {**YARN_OF_MINISTRAL3, "rope_theta": 10000.0, "factor": 128.0, **ORIGINAL_OF_MISTRAL4}
        },
        neutral={
            **LATENT_NEUTRAL,
            "rope_parameters.partial_rotary_factor": "qk_rope_head_dim says it",
            "rope_parameters.max_position_embeddings": "max_position_embeddings says it",
        },
        latent=True,
        temperature="llama_4_scaling_beta",
        expert_names=EXPERTS,
        routing=mistral_routing,
        weights=experts("mlp", r"experts\.gate_up_proj", r"experts\.down_proj"),
    ),
    Family(
        name="axk1",
        model_types=("axk1",),
        architectures=("AXK1ForCausalLM",),
        defaults={"first_k_dense_replace": 1},
        neutral={**LATENT_NEUTRAL, **CORRECTED_NEUTRAL},
        latent=True,
        expert_names=EXPERTS,
        routing="corrected_sigmoid",
        weights=modules(("post_mlp_layernorm", "post_feedforward_layernorm")),
        block=normed_experts,
    ),
    Family(
        name="axk2",
        model_types=("axk2",),
        architectures=("AXK2ForCausalLM",),
        defaults={"first_k_dense_replace": 1},
        neutral={
            **LATENT_NEUTRAL,
            **CORRECTED_NEUTRAL,
            **INDEX_NEUTRAL,
            "indexer_rope_interleave = false": "the only way",
        },
        latent=True,
        heads=HeadsSpec(latent_gate=True),
        expert_names=EXPERTS,
        # In transformers experts outside of the best groups have the score 0, so one of them is chosen where fewer of those
        # inside than asked for have a positive score. Here none is: only large negative corrections would show it.
        routing="corrected_sigmoid",
        block=gated_and_indexed,
        weights=gated_index_weights,
    ),
    Family(
        name="glm4_moe_lite",
        model_types=("glm4_moe_lite",),
        architectures=("Glm4MoeLiteForCausalLM",),
        fixed={"first_k_dense_replace": 1},
        neutral={**LATENT_NEUTRAL, **CORRECTED_NEUTRAL},
        latent=True,
        expert_names=EXPERTS,
        routing="corrected_sigmoid",
    ),
    Family(
        name="glm4_moe",
        model_types=("glm4_moe",),
        architectures=("Glm4MoeForCausalLM",),
        neutral=CORRECTED_NEUTRAL,
        biases={"out": False},
        qk_norm=HeadNorm(key="use_qk_norm"),
        expert_names=EXPERTS,
        routing="corrected_sigmoid",
    ),
    Family(
        name="dots1",
        model_types=("dots1",),
        architectures=("Dots1ForCausalLM",),
        neutral=CORRECTED_NEUTRAL,
        qk_norm=True,
        expert_names=EXPERTS,
        routing="corrected_sigmoid",
    ),
    Family(
        name="exaone_moe",
        model_types=("exaone_moe",),
        architectures=("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"),
        neutral=CORRECTED_NEUTRAL,
        unrotated="full",
        qk_norm=True,
        expert_names=EXPERTS,
        routing="corrected_sigmoid",
        weights=(
            *modules(("mlp.e_score_correction_bias", "mlp.gate.e_score_correction_bias")),
            Ignored(r"mtp\..*", "layers that draft"),
        ),
    ),
    Family(
        name="solar_open",
        model_types=("solar_open",),
        architectures=("SolarOpenForCausalLM",),
        defaults={"intermediate_size": 10240},  # not used by any layer: all have experts
        neutral=CORRECTED_NEUTRAL,
        biases={"out": False},
        expert_names=EXPERTS,
        routing="corrected_sigmoid",
    ),
)
