"""DeepSeek: latent attention and many experts."""

from __future__ import annotations

from core.models.families.row import Family

ROWS = (
    Family(
        name="deepseek_v2",
        model_types=("deepseek_v2",),
        architectures=("DeepseekV2ForCausalLM",),
        neutral={
            "head_dim": "the parts of heads have sizes of their own",
            "num_key_value_heads": "every head has keys of its own",
            "qk_head_dim": "the sum of two other sizes",
            "moe_layer_freq = 1": "every layer has experts from the first one on",
            'scoring_func = "softmax"': "the only way",
        },
        latent=True,
        expert_names=("mlp", "gate_proj", "up_proj", "down_proj"),
        renormalize=False,
    ),
    Family(
        name="deepseek_v3",
        model_types=("deepseek_v3",),
        architectures=("DeepseekV3ForCausalLM",),
        neutral={
            "head_dim": "the parts of heads have sizes of their own",
            "num_key_value_heads": "every head has keys of its own",
            "qk_head_dim": "the sum of two other sizes",
            "moe_layer_freq = 1": "every layer has experts from the first one on",
            'scoring_func = "sigmoid"': "the only way",
            'topk_method = "noaux_tc"': "the only way",
        },
        latent=True,
        expert_names=("mlp", "gate_proj", "up_proj", "down_proj"),
        routing="corrected_sigmoid",
    ),
)
