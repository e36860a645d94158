"""GLM: neighbouring rotary pairs on a part of each head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core_models.llama import SECTIONS
from core_runtime.models.configuration import configuration
from core_runtime.models.families.row import Family
from core_runtime.models.weight_rules import Ignored, modules
from core_runtime.specs.block_spec import HeadsSpec


def usual_of_chatglm(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Translate the keys of ChatGLM's own code, from its second version on."""
    config = configuration(hf_config)
    for key, expected in REQUIRED.items():
        said = config.flag(key, expected)
        if said != expected:
            config.fail(key, said, f"{str(expected).lower()}, as every ChatGLM from the second on has it")
    num_heads = config.positive("num_attention_heads")
    if config.flag("multi_query_attention", False):
        num_heads = config.positive("multi_query_group_num")
    values = {
        "vocab_size": config.positive("padded_vocab_size"),
        "num_key_value_heads": num_heads,
        "rope_theta": 10000.0 * config.number("rope_ratio", 1.0, low=1e-6),
        "partial_rotary_factor": 0.5,
    }
    return config.overlaid(values)


REQUIRED = {
    "rmsnorm": True,
    "post_layer_norm": True,
    "original_rope": True,
    "apply_residual_connection_post_layernorm": False,
}
"""Options of ChatGLM's code that have the same value in all of its models."""

NORMS_OF_GLM4 = modules(
    ("post_attention_layernorm", "pre_feedforward_layernorm"),
    ("post_self_attn_layernorm", "post_attention_layernorm"),
    ("post_mlp_layernorm", "post_feedforward_layernorm"),
)

ROWS = (
    Family(
        name="chatglm",
        model_types=("chatglm",),
        architectures=("ChatGLMModel", "ChatGLMForConditionalGeneration"),
        keys={
            "num_hidden_layers": "num_layers",
            "intermediate_size": "ffn_hidden_size",
            "head_dim": "kv_channels",
            "max_position_embeddings": "seq_length",
            "rms_norm_eps": "layernorm_epsilon",
        },
        neutral={
            "apply_query_key_layer_scaling": "it divides and multiplies by the same number",
            "bias_dropout_fusion": "kernels are plugins here",
            "fp32_residual_connection": "--dtype decides",
            "interleaved_qkv = false": "as always",
            "quantization_bit = 0": "nothing is quantized",
            "pre_seq_len": "prompts that were learned are not loaded",
            "prefix_projection": "prompts that were learned are not loaded",
        },
        usual=usual_of_chatglm,
        interleaved=True,
        heads=HeadsSpec(fused="rows"),
        fused_gate_up=True,
        biases={
            "query": "add_qkv_bias",
            "key": "add_qkv_bias",
            "value": "add_qkv_bias",
            "out": "add_bias_linear",
            "mlp": "add_bias_linear",
            "down": "add_bias_linear",
        },
        weights=(
            Ignored(r"transformer\.rotary_pos_emb\.inv_freq", "computed from the configuration"),
            *modules(
                ("transformer.embedding.word_embeddings", "model.embed_tokens"),
                ("transformer.encoder.layers", "model.layers"),
                ("transformer.encoder.final_layernorm", "model.norm"),
                ("transformer.output_layer", "lm_head"),
                ("self_attention.query_key_value", "self_attn.qkv_proj"),
                ("self_attention.dense", "self_attn.o_proj"),
                ("mlp.dense_h_to_4h", "mlp.gate_up_proj"),
                ("mlp.dense_4h_to_h", "mlp.down_proj"),
            ),
        ),
    ),
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
        weights=NORMS_OF_GLM4,
    ),
    Family(
        name="glm4v",
        model_types=("glm4v_text",),
        architectures=("Glm4vForConditionalGeneration",),
        wrappers=("glm4v", "glm46v"),
        neutral=SECTIONS,
        interleaved=True,
        fused_gate_up=True,
        biases={"query": True, "key": True, "value": True, "out": False, "mlp": False},
        sandwich_norms=True,
        weights=NORMS_OF_GLM4,
    ),
)
