"""GPT-2 and models of its generation: layer norms, learned positions, plain MLPs.

Owns: rows, and the translation of their configurations' own keys. Never does: hold weights. Called by: the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from core.api.specs import AttentionSpec
from core_runtime.models.configuration import Configuration, configuration
from core_runtime.models.families.row import Family
from core_runtime.models.weight_rules import Ignored, Rename, Turned, WeightRule, modules
from core_runtime.specs.block_spec import BlockSpec, HeadsSpec
from core_runtime.specs.decoder_spec import DecoderSpec

SAID_ELSEWHERE = {"n_ctx": "the number of positions says it", "gradient_checkpointing": "training"}
MASK = "the causal mask"
GPT2_NAMES: tuple[WeightRule, ...] = (
    Ignored(r"(transformer\.)?h\.\d+\.attn\.(attention\.)?(bias|masked_bias|causal_mask)", MASK),
    Rename(r"^(transformer\.)?h\.", "model.layers."),
    Rename(r"^(transformer\.)?(wte|tokens_embed)\.", "model.embed_tokens."),
    Rename(r"^(transformer\.)?(wpe|positions_embed)\.", "model.embed_positions."),
    Rename(r"^(transformer\.)?ln_f\.", "model.norm."),
    *modules(
        ("attn.c_attn", "self_attn.qkv_proj"),
        ("attn.c_proj", "self_attn.o_proj"),
        ("mlp.c_fc", "mlp.up_proj"),
        ("mlp.c_proj", "mlp.down_proj"),
    ),
)
"""Tensor names of GPT-2 and of models that started from its code."""
GPTJ_NAMES: tuple[WeightRule, ...] = (
    *GPT2_NAMES,
    *modules(
        ("ln_1", "input_layernorm"),
        ("attn.out_proj", "self_attn.o_proj"),
        ("attn", "self_attn"),
        ("mlp.fc_in", "mlp.up_proj"),
        ("mlp.fc_out", "mlp.down_proj"),
    ),
)
PRE_NORMS = modules(("ln_1", "input_layernorm"), ("ln_2", "post_attention_layernorm"))
POST_NORMS = modules(("ln_1", "post_attention_layernorm"), ("ln_2", "post_feedforward_layernorm"))
CONV1D = (Turned(r"model\.layers\.\d+\.\w+\.(qkv|o|up|down)_proj\.weight"),)
"""Rule for matrices of GPT-2's `Conv1D`, which are stored transposed."""
NEOX_NAMES: tuple[WeightRule, ...] = (
    Ignored(r"gpt_neox\w*\.layers\.\d+\.attention\.(bias|masked_bias)", MASK),
    Rename(r"^gpt_neox(_japanese)?\.embed_in\.", "model.embed_tokens."),
    Rename(r"^gpt_neox(_japanese)?\.final_layer_norm\.", "model.norm."),
    Rename(r"^gpt_neox(_japanese)?\.", "model."),
    Rename(r"\.attention\.dense_bias$", ".self_attn.o_proj.bias"),
    *modules(
        ("embed_out", "lm_head"),
        ("attention.query_key_value", "self_attn.qkv_proj"),
        ("attention.dense", "self_attn.o_proj"),
        ("mlp.dense_h_to_4h", "mlp.up_proj"),
        ("mlp.dense_4h_to_h", "mlp.down_proj"),
    ),
)
ALL_BIASES = {"query": True, "key": True, "value": True, "out": True, "mlp": True}
ONLY_MLP = {"query": False, "key": False, "value": False, "out": False, "mlp": True}
UNSCALED = {"query_pre_attn_scalar": 1.0}


def _with_inner(hf_config: Mapping[str, Any], own: str = "n_inner") -> Configuration:
    """Return the configuration with the MLP's size, four times the hidden size unless it has a key of its own."""
    config = configuration(hf_config)
    hidden = config.positive("hidden_size")
    return config.overlaid({"intermediate_size": config.positive(own, 4 * hidden)})


def four_times(hf_config: Mapping[str, Any]) -> Configuration:
    """Return the configuration with an MLP of four times the hidden size, regardless of its other keys."""
    config = configuration(hf_config)
    return config.overlaid({"intermediate_size": 4 * config.positive("hidden_size")})


def _gpt2_block(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    config = configuration(hf_config)
    mixer = block.mixer
    assert isinstance(mixer, AttentionSpec), "GPT-2 attends"
    scale = mixer.scale if config.flag("scale_attn_weights", True) else 1.0
    if config.flag("scale_attn_by_inverse_layer_idx"):
        scale /= index + 1
    return msgspec.structs.replace(block, mixer=msgspec.structs.replace(mixer, scale=scale))


def _bigcode_usual(hf_config: Mapping[str, Any]) -> Configuration:
    config = _with_inner(hf_config)
    shared = config.flag("multi_query", True)
    scalar = {} if config.flag("scale_attn_weights", True) else UNSCALED
    heads = 1 if shared else config.positive("num_attention_heads")
    return config.overlaid({"num_key_value_heads": heads, **scalar})


def _bigcode_adjust(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    if configuration(hf_config).flag("multi_query", True):
        return spec
    return msgspec.structs.replace(spec, heads=msgspec.structs.replace(spec.heads, fused="groups"))


def _neo_usual(hf_config: Mapping[str, Any]) -> Configuration:
    """Return the configuration with `layer_types` from `attention_types`, a list of (kinds, repetitions) in the order
    of layers.
    """
    config = _with_inner(hf_config, "intermediate_size")
    kinds: list[str] = []
    given = config.get("attention_types") or [[["global", "local"], 12]]
    for pattern, times in given:
        kinds.extend(pattern * times)
    names = {"global": "full_attention", "local": "sliding_attention"}
    if not set(kinds) <= names.keys():
        config.fail("attention_types", given, "layers that are global or local")
    return config.overlaid(
        {"layer_types": [names[kind] for kind in kinds], "sliding_window": config.positive("window_size")}
    )


def _neox_adjust(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    if configuration(hf_config).flag("use_parallel_residual", True):
        return msgspec.structs.replace(spec, order="parallel_two")
    return spec


def _japanese_usual(hf_config: Mapping[str, Any]) -> Configuration:
    config = configuration(hf_config)
    size = config.positive("hidden_size") * config.positive("intermediate_multiple_size")
    return config.overlaid({"intermediate_size": size})


def _japanese_block(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    """Set the output bias of attention, which only the last block has."""
    if index + 1 < configuration(hf_config).positive("num_hidden_layers"):
        return block
    return msgspec.structs.replace(block, heads=HeadsSpec(fused="groups", out_bias=True))


def _openai_usual(hf_config: Mapping[str, Any]) -> Configuration:
    """Return the configuration with usual keys. Its `gelu` means the approximation by tanh."""
    config = four_times(hf_config)
    activation = config.text("afn", "gelu")
    return config.overlaid({"hidden_act": "gelu_new" if activation == "gelu" else activation})


ROWS: tuple[Family, ...] = (
    Family(
        name="gpt2",
        model_types=("gpt2",),
        architectures=("GPT2LMHeadModel",),
        neutral=SAID_ELSEWHERE,
        usual=_with_inner,
        norm="layer",
        norm_bias=True,
        learned_positions=0,
        rotary=False,
        gated=False,
        biases=ALL_BIASES,
        heads=HeadsSpec(fused="rows"),
        weights=(*GPT2_NAMES, *PRE_NORMS, *CONV1D),
        block=_gpt2_block,
    ),
    Family(
        name="gpt_bigcode",
        model_types=("gpt_bigcode",),
        architectures=("GPTBigCodeForCausalLM",),
        neutral={
            **SAID_ELSEWHERE,
            "inference_runner": "of another program",
            "validate_runner_input": "of another program",
        },
        usual=_bigcode_usual,
        norm="layer",
        norm_bias=True,
        learned_positions=0,
        rotary=False,
        gated=False,
        biases=ALL_BIASES,
        heads=HeadsSpec(fused="rows"),
        weights=(*GPT2_NAMES, *PRE_NORMS),
        adjust=_bigcode_adjust,
    ),
    Family(
        name="gpt_neo",
        model_types=("gpt_neo",),
        architectures=("GPTNeoForCausalLM",),
        fixed=UNSCALED,
        neutral={"attention_layers": "attention_types says it"},
        usual=_neo_usual,
        norm="layer",
        norm_bias=True,
        learned_positions=0,
        rotary=False,
        gated=False,
        biases={**ONLY_MLP, "out": True},
        weights=(
            *GPT2_NAMES,
            *PRE_NORMS,
            *modules(("attn.attention.out_proj", "self_attn.o_proj"), ("attn.attention", "self_attn")),
        ),
    ),
    Family(
        name="gpt_neox",
        model_types=("gpt_neox",),
        architectures=("GPTNeoXForCausalLM",),
        keys={"partial_rotary_factor": "rotary_pct", "rope_theta": "rotary_emb_base"},
        defaults={"partial_rotary_factor": 0.25},
        norm="layer",
        norm_bias=True,
        gated=False,
        biases={"mlp": True},
        heads=HeadsSpec(fused="groups"),
        weights=NEOX_NAMES,
        adjust=_neox_adjust,
    ),
    Family(
        name="gpt_neox_japanese",
        model_types=("gpt_neox_japanese",),
        architectures=("GPTNeoXJapaneseForCausalLM",),
        keys={"partial_rotary_factor": "rotary_pct", "rope_theta": "rotary_emb_base"},
        usual=_japanese_usual,
        norm="layer",
        norm_bias=True,
        gated=False,
        heads=HeadsSpec(fused="groups"),
        weights=NEOX_NAMES,
        block=_japanese_block,
    ),
    Family(
        name="gptj",
        model_types=("gptj",),
        architectures=("GPTJForCausalLM",),
        usual=_with_inner,
        order="parallel",
        norm="layer",
        norm_bias=True,
        interleaved=True,
        gated=False,
        biases={**ONLY_MLP, "head": True},
        weights=GPTJ_NAMES,
    ),
    Family(
        name="codegen",
        model_types=("codegen",),
        architectures=("CodeGenForCausalLM",),
        neutral=SAID_ELSEWHERE,
        usual=_with_inner,
        order="parallel",
        norm="layer",
        norm_bias=True,
        interleaved=True,
        gated=False,
        biases={**ONLY_MLP, "head": True},
        heads=HeadsSpec(fused="quarters"),
        weights=GPTJ_NAMES,
    ),
    Family(
        name="openai-gpt",
        model_types=("openai-gpt",),
        architectures=("OpenAIGPTLMHeadModel",),
        neutral={**SAID_ELSEWHERE, "n_special": "a token", "predict_special_tokens": "a loss"},
        usual=_openai_usual,
        order="residual_post",
        norm="layer",
        norm_bias=True,
        final_norm=False,
        learned_positions=0,
        rotary=False,
        gated=False,
        biases=ALL_BIASES,
        heads=HeadsSpec(fused="rows"),
        weights=(*GPT2_NAMES, *POST_NORMS, *CONV1D),
    ),
)
