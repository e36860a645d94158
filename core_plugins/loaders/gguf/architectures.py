"""The architectures of GGUF files: their tensor names, shapes and metadata keys in Hugging Face's terms.

Owns: one row an architecture. Never does: read a file; guess a name that the table lacks.
Called by: `core_plugins.loaders.gguf.translate`.

Shapes are spelled with letters: H hidden, I intermediate, Q all query heads, K all key-value heads, D one head, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Names = dict[str, tuple[str, str]]

MODEL: Names = {
    "token_embd.weight": ("model.embed_tokens.weight", "VH"),
    "output_norm.weight": ("model.norm.weight", "H"),
}
MODEL_OPTIONAL: Names = {"output.weight": ("lm_head.weight", "VH")}

ATTENTION: Names = {
    "attn_norm.weight": ("input_layernorm.weight", "H"),
    "attn_q.weight": ("self_attn.q_proj.weight", "QH"),
    "attn_k.weight": ("self_attn.k_proj.weight", "KH"),
    "attn_v.weight": ("self_attn.v_proj.weight", "KH"),
    "attn_output.weight": ("self_attn.o_proj.weight", "HQ"),
}
ATTENTION_BIAS: Names = {
    "attn_q.bias": ("self_attn.q_proj.bias", "Q"),
    "attn_k.bias": ("self_attn.k_proj.bias", "K"),
    "attn_v.bias": ("self_attn.v_proj.bias", "K"),
    "attn_output.bias": ("self_attn.o_proj.bias", "H"),
}
GATED_MLP: Names = {
    "ffn_gate.weight": ("mlp.gate_proj.weight", "IH"),
    "ffn_up.weight": ("mlp.up_proj.weight", "IH"),
    "ffn_down.weight": ("mlp.down_proj.weight", "HI"),
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture.

    layer, layer_optional: GGUF name after `blk.N.` to (canonical name after `model.layers.N.`, shape).
    rotary_interleaved:    query and key rows are stored in interleaved rotary order (pairs (2i, 2i + 1)).
    norm_offset:           the file holds norm weights with this value added to the canonical ones.
    constants:             configuration that the format implies and does not store.
    """

    model_type: str
    hf_class: str
    layer: Names
    layer_optional: Names = field(default_factory=dict)
    rotary_interleaved: bool = False
    norm_offset: float = 0.0
    constants: dict[str, Any] = field(default_factory=dict)


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(
        model_type="llama",
        hf_class="LlamaForCausalLM",
        layer={**ATTENTION, **GATED_MLP, "ffn_norm.weight": ("post_attention_layernorm.weight", "H")},
        layer_optional=ATTENTION_BIAS,
        rotary_interleaved=True,
        constants={"hidden_act": "silu", "mlp_bias": False},
    ),
    "gemma3": Architecture(
        model_type="gemma3_text",
        hf_class="Gemma3ForCausalLM",
        layer={
            **ATTENTION,
            **GATED_MLP,
            "attn_q_norm.weight": ("self_attn.q_norm.weight", "D"),
            "attn_k_norm.weight": ("self_attn.k_norm.weight", "D"),
            "post_attention_norm.weight": ("post_attention_layernorm.weight", "H"),
            "ffn_norm.weight": ("pre_feedforward_layernorm.weight", "H"),
            "post_ffw_norm.weight": ("post_feedforward_layernorm.weight", "H"),
        },
        norm_offset=1.0,
        constants={"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False},
    ),
}
