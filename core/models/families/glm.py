"""GLM: neighbouring rotary pairs on a part of each head."""

from __future__ import annotations

from core.models.families.row import Family
from core.models.weight_rules import modules

ROWS = (
    Family(
        name="glm",
        model_types=("glm",),
        architectures=("GlmForCausalLM",),
        interleaved=True,
        fused_gate_up=True,
        biases={"out": False, "mlp": False},
    ),
    Family(
        name="glm4",
        model_types=("glm4",),
        architectures=("Glm4ForCausalLM",),
        interleaved=True,
        fused_gate_up=True,
        biases={"out": False, "mlp": False},
        sandwich_norms=True,
        weights=modules(
            ("post_attention_layernorm", "pre_feedforward_layernorm"),
            ("post_self_attn_layernorm", "post_attention_layernorm"),
            ("post_mlp_layernorm", "post_feedforward_layernorm"),
        ),
    ),
)
