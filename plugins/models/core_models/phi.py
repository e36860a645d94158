"""Phi, StableLM, StarCoder 2 and Persimmon: layer norms, partial rotary, parallel blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from core_runtime.models.configuration import configuration
from core_runtime.models.families.row import NEVER, Family, HeadNorm
from core_runtime.models.weight_rules import Ignored, Joined, Rename, modules
from core_runtime.specs.block_spec import HeadsSpec
from core_runtime.specs.decoder_spec import DecoderSpec


def side_by_side(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    """Set the order of StableLM's blocks, sequential or parallel."""
    if not configuration(hf_config).flag("use_parallel_residual", False):
        return spec
    return msgspec.structs.replace(spec, order="parallel")


PHI3_NEUTRAL = {
    "attention_bias = false": "its projections have none",
    "mlp_bias = false": "its projections have none",
    "lm_head_bias = false": "its head has none",
    "full_attn_mod = 1": "every layer is like the others",
    "interpolate_factor = 1": "nothing is interpolated",
}

ROWS = (
    Family(
        name="phi",
        model_types=("phi",),
        architectures=("PhiForCausalLM",),
        order="parallel",
        norm="layer",
        norm_bias=True,
        gated=False,
        biases={"query": True, "key": True, "value": True, "out": True, "mlp": True, "head": True},
        qk_norm=HeadNorm(bias=True, key="qk_layernorm"),
        weights=modules(
            ("model.final_layernorm", "model.norm"),
            ("self_attn.dense", "self_attn.o_proj"),
            ("q_layernorm", "q_norm"),
            ("k_layernorm", "k_norm"),
            ("mlp.fc1", "mlp.up_proj"),
            ("mlp.fc2", "mlp.down_proj"),
        ),
    ),
    Family(
        name="phi3",
        model_types=("phi3",),
        architectures=("Phi3ForCausalLM",),
        neutral=PHI3_NEUTRAL,
        full_every=NEVER,
        heads=HeadsSpec(fused="rows"),
        fused_gate_up=True,
        biases={"query": False, "key": False, "value": False, "out": False, "mlp": False},
    ),
    Family(
        name="phi4_multimodal",
        model_types=("phi4_multimodal",),
        architectures=("Phi4MultimodalForCausalLM", "Phi4MMForCausalLM"),
        neutral={
            **PHI3_NEUTRAL,
            "vision_config": "it is not of the text",
            "audio_config": "it is not of the text",
            "vision_lora": "the text alone is computed without adapters",
            "speech_lora": "the text alone is computed without adapters",
            "img_processor": "it is not of the text",
            "audio_processor": "it is not of the text",
            "embd_layer": "it is not of the text",
        },
        full_every=NEVER,
        heads=HeadsSpec(fused="rows"),
        fused_gate_up=True,
        biases={"query": False, "key": False, "value": False, "out": False, "mlp": False},
        weights=(
            Ignored(r"model\.embed_tokens_extend\..*", "it is not of the text"),
            Ignored(r".*\.lora_[AB]\.(vision|speech)\..*", "the text alone is computed without adapters"),
            Rename(r"\.base_layer\.", "."),
        ),
    ),
    Family(
        name="stablelm",
        model_types=("stablelm",),
        architectures=("StableLmForCausalLM", "StableLMEpochForCausalLM"),
        norm="layer",
        norm_bias=True,
        biases={
            "query": "use_qkv_bias",
            "key": "use_qkv_bias",
            "value": "use_qkv_bias",
            "out": False,
            "mlp": False,
        },
        qk_norm=HeadNorm(over="heads", key="qk_layernorm"),
        weights=(
            Joined(
                r"(model\.layers\.\d+\.self_attn\.[qk])_layernorm\.norms\.(?P<number>\d+)\.weight",
                r"\1_norm.weight",
            ),
        ),
        adjust=side_by_side,
    ),
    Family(
        name="starcoder2",
        model_types=("starcoder2",),
        architectures=("Starcoder2ForCausalLM",),
        keys={"layer_norm_eps": "norm_epsilon"},
        neutral={
            "layer_norm_epsilon": "norm_epsilon says it",
            "activation_function": "hidden_act says it",
            'norm_type = "layer_norm"': "its only kind of norm",
            'mlp_type = "default"': "its only kind of MLP",
            "scale_attn_weights = true": "as always",
        },
        tied_by_default=True,
        norm="layer",
        norm_bias=True,
        gated=False,
        full_every=NEVER,
        biases={
            "query": "use_bias",
            "key": "use_bias",
            "value": "use_bias",
            "out": "use_bias",
            "mlp": "use_bias",
            "down": "use_bias",
        },
        weights=modules(("mlp.c_fc", "mlp.up_proj"), ("mlp.c_proj", "mlp.down_proj")),
    ),
    Family(
        name="persimmon",
        model_types=("persimmon",),
        architectures=("PersimmonForCausalLM",),
        norm="layer",
        norm_bias=True,
        gated=False,
        heads=HeadsSpec(fused="groups"),
        biases={"query": True, "key": True, "value": True, "out": True, "mlp": True},
        fixed={"num_key_value_heads": None},
        neutral={"rms_norm_eps": "layer_norm_eps says it"},
        qk_norm=HeadNorm(bias=True, key="qk_layernorm"),
        weights=modules(
            ("model.final_layernorm", "model.norm"),
            ("self_attn.query_key_value", "self_attn.qkv_proj"),
            ("self_attn.dense", "self_attn.o_proj"),
            ("q_layernorm", "q_norm"),
            ("k_layernorm", "k_norm"),
            ("mlp.dense_h_to_4h", "mlp.up_proj"),
            ("mlp.dense_4h_to_h", "mlp.down_proj"),
        ),
    ),
)
