"""DeepSeek: latent attention and many experts."""

from __future__ import annotations

from core.models.families.row import Family

ROWS = (
    Family(
        name="deepseek_v2",
        model_types=("deepseek_v2",),
        architectures=("DeepseekV2ForCausalLM",),
        latent=True,
        expert_names=("mlp", "gate_proj", "up_proj", "down_proj"),
        renormalize=False,
    ),
    Family(
        name="deepseek_v3",
        model_types=("deepseek_v3",),
        architectures=("DeepseekV3ForCausalLM",),
        latent=True,
        expert_names=("mlp", "gate_proj", "up_proj", "down_proj"),
        routing="corrected_sigmoid",
    ),
)
