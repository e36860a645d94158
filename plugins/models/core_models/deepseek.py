"""DeepSeek: latent attention and many experts, and families with the same routing of experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from core_runtime.models.families.row import EXPERTS, Family, HeadNorm
from core_runtime.models.weight_rules import Ignored, modules
from core_runtime.specs.block_spec import BlockSpec

LATENT_NEUTRAL = {
    "head_dim": "the parts of heads have sizes of their own",
    "num_key_value_heads": "every head has keys of its own",
    "qk_head_dim": "the sum of two other sizes",
    "moe_layer_freq = 1": "every layer has experts from the first one on",
}
CORRECTED_NEUTRAL = {
    'scoring_func = "sigmoid"': "the only way",
    'topk_method = "noaux_tc"': "the only way",
}


def normed_experts(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    """Normalize the output of experts, but not the output of plain MLPs."""
    return msgspec.structs.replace(block, norm_behind_mlp=block.experts is not None)


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
