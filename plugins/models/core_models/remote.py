"""Llamas under other names of tensors and keys, for which transformers has no class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from core_models import bailing, gte, nemotron_nas, pangu, plamo3, solar, step3, step35
from core_models.alibi import slopes, with_slopes
from core_models.scaled import scaled_by_depth
from core_runtime.models.configuration import Configuration, configuration
from core_runtime.models.families.class_heads import OF_INTERNLM2
from core_runtime.models.families.row import Family
from core_runtime.models.weight_rules import Cut, UnitRows, WeightRule, modules
from core_runtime.specs.block_spec import HeadsSpec
from core_runtime.specs.decoder_spec import DecoderSpec

BAICHUAN2_VOCAB = 125696
"""Vocabulary size of Baichuan 2, by which alone its configuration differs from Baichuan's."""


def baichuan_weights(hf_config: Mapping[str, Any], spec: DecoderSpec) -> tuple[WeightRule, ...]:
    """Return the rules for tensor names. The head of Baichuan 2 is computed with rows of length 1 (arXiv 2309.10305,
    section 2.5).
    """
    rules: tuple[WeightRule, ...] = modules(("self_attn.W_pack", "self_attn.qkv_proj"))
    if hf_config.get("vocab_size") == BAICHUAN2_VOCAB:
        rules += (UnitRows(r"lm_head\.weight"),)
    return rules


def baichuan(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    """Set rotary embedding or slopes.

    The small models have a rotary embedding. Configurations of the large ones have no number of positions; they use
    slopes instead.
    """
    if hf_config.get("max_position_embeddings") is not None:
        return spec
    num_heads = configuration(hf_config).positive("num_attention_heads")
    blocks = [msgspec.structs.replace(block, rope=None) for block in spec.blocks]
    length = configuration(hf_config).positive("model_max_length", spec.max_position)
    unrotated = msgspec.structs.replace(spec, blocks=tuple(blocks), max_position=length)
    return with_slopes(unrotated, slopes(num_heads))


def first_qwen(hf_config: Mapping[str, Any]) -> Configuration:
    """Return a configuration of the first Qwen under the usual names.

    Half of `intermediate_size` is the inner size. Beyond `seq_length` the base of the rotary embedding and the scores
    would grow with each sequence's length, so that is the longest sequence.
    """
    config = configuration(hf_config)
    inner = config.positive("intermediate_size")
    if inner % 2:
        config.fail("intermediate_size", inner, "an even number, twice the inner size")
    length = config.positive("max_position_embeddings", 8192)
    longest = min(length, config.positive("seq_length", length))
    return config.overlaid({"intermediate_size": inner // 2, "max_position_embeddings": longest})


def telechat_weights(hf_config: Mapping[str, Any], spec: DecoderSpec) -> tuple[WeightRule, ...]:
    """Return the rules for TeleChat 2, where each head's key and value lie together."""
    config = configuration(hf_config)
    head = config.positive("hidden_size") // config.positive("num_attention_heads")
    return (
        *modules(
            ("transformer.word_embeddings", "model.embed_tokens"),
            ("transformer.h", "model.layers"),
            ("transformer.ln_f", "model.norm"),
            ("self_attention.query", "self_attn.q_proj"),
            ("self_attention.dense", "self_attn.o_proj"),
            ("self_attention", "self_attn"),
        ),
        Cut(r"(.*\.self_attn)\.key_value\.weight", r"\1.{piece}.weight", ("k_proj", "v_proj"), run=head),
    )


def teleflm_scalars(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    """Set the factors of embeddings and logits (arXiv 2304.06875), which `use_mup` turns on."""
    config = configuration(hf_config)
    embed = config.number("input_mult", 1.0)
    logits = config.number("output_mult", 1.0) / config.number("mup_scale_factor", 1.0, low=1e-6)
    if not config.flag("use_mup"):
        return spec
    return msgspec.structs.replace(spec, embed_scale=embed, logit_scale=logits)


ROWS: tuple[Family, ...] = (
    gte.FIRST,
    *bailing.ROWS,
    *nemotron_nas.ROWS,
    *solar.ROWS,
    *plamo3.ROWS,
    *step3.ROWS,
    *step35.ROWS,
    *pangu.ROWS,
    Family(
        name="qwen",
        model_types=("qwen",),
        architectures=("QWenLMHeadModel",),
        keys={"head_dim": "kv_channels", "rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
        neutral={
            "use_dynamic_ntk": "beyond seq_length alone, which limits --max-model-len",
            "use_logn_attn": "beyond seq_length alone, which limits --max-model-len",
            "no_bias = true": "the only way",
            "scale_attn_weights = true": "the only way",
            "use_cache_quantization": "--kv-cache-dtype decides",
            "use_cache_kernel": "kernels are plugins here",
            "softmax_in_fp32": "softmax is computed in float32 anyway",
            "onnx_safe": "how the model is exported",
        },
        usual=first_qwen,
        eps_default=1e-6,
        heads=HeadsSpec(fused="rows"),
        biases={"query": True, "key": True, "value": True, "out": False, "mlp": False},
        weights=modules(
            ("transformer.wte", "model.embed_tokens"),
            ("transformer.h", "model.layers"),
            ("transformer.ln_f", "model.norm"),
            ("ln_1", "input_layernorm"),
            ("ln_2", "post_attention_layernorm"),
            ("attn.c_attn", "self_attn.qkv_proj"),
            ("attn.c_proj", "self_attn.o_proj"),
            ("mlp.w2", "mlp.gate_proj"),
            ("mlp.w1", "mlp.up_proj"),
            ("mlp.c_proj", "mlp.down_proj"),
        ),
    ),
    Family(
        name="telechat2",
        model_types=("telechat", "telechat2"),
        architectures=("TeleChat2ForCausalLM", "TeleChatForCausalLM"),
        keys={
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "intermediate_size": "ffn_hidden_size",
            "max_position_embeddings": "seq_length",
        },
        neutral={
            "training_seqlen": "seq_length limits --max-model-len",
            "base_seqlen": "seq_length limits --max-model-len",
            "logn = false": "scores do not grow with the length",
            "embed_layernorm = false": "embeddings are not normalized",
            "apply_residual_connection_post_layernorm = false": "the only way",
            "skip_bias_add*": "how training was divided",
            "masked_softmax_fusion": "how it is computed",
            "bias_dropout_fusion": "how it is computed",
        },
        eps_default=1e-5,
        biases={"query": False, "key": False, "value": False, "out": True, "mlp": False, "down": True},
        weights=telechat_weights,
    ),
    Family(
        name="teleflm",
        model_types=("TeleFLM", "teleflm"),
        architectures=("TeleFLMForCausalLM",),
        adjust=teleflm_scalars,
    ),
    Family(
        name="internlm",
        model_types=("internlm",),
        architectures=("InternLMForCausalLM",),
        keys={"attention_bias": "bias"},
        defaults={"attention_bias": True},
    ),
    Family(
        name="internlm2",
        class_heads=OF_INTERNLM2,
        model_types=("internlm2",),
        architectures=("InternLM2ForCausalLM",),
        keys={"attention_bias": "bias"},
        defaults={"attention_bias": True},
        heads=HeadsSpec(fused="groups"),
        weights=modules(
            ("model.tok_embeddings", "model.embed_tokens"),
            ("attention.wqkv", "self_attn.qkv_proj"),
            ("attention.wo", "self_attn.o_proj"),
            ("feed_forward.w1", "mlp.gate_proj"),
            ("feed_forward.w3", "mlp.up_proj"),
            ("feed_forward.w2", "mlp.down_proj"),
            ("attention_norm", "input_layernorm"),
            ("ffn_norm", "post_attention_layernorm"),
            ("output", "lm_head"),
        ),
    ),
    Family(
        name="baichuan",
        model_types=("baichuan",),
        architectures=("BaichuanForCausalLM", "BaiChuanForCausalLM"),
        heads=HeadsSpec(fused="rows"),
        weights=baichuan_weights,
        adjust=baichuan,
    ),
    Family(
        name="exaone",
        model_types=("exaone",),
        architectures=("ExaoneForCausalLM",),
        keys={"num_hidden_layers": "num_layers", "hidden_act": "activation_function"},
        eps_default=1e-5,
        weights=modules(
            ("transformer.wte", "model.embed_tokens"),
            ("transformer.h", "model.layers"),
            ("transformer.ln_f", "model.norm"),
            ("attn.attention.out_proj", "self_attn.o_proj"),
            ("attn.attention", "self_attn"),
            ("mlp.c_fc_0", "mlp.gate_proj"),
            ("mlp.c_fc_1", "mlp.up_proj"),
            ("mlp.c_proj", "mlp.down_proj"),
            ("ln_1", "input_layernorm"),
            ("ln_2", "post_attention_layernorm"),
        ),
    ),
    Family(
        name="minicpm",
        model_types=("minicpm",),
        architectures=("MiniCPMForCausalLM",),
        defaults={"scale_emb": 1, "scale_depth": 1, "dim_model_base": 1},
        tied_by_default=True,
        scalars={"embed": "scale_emb"},
        adjust=scaled_by_depth,
    ),
    Family(
        name="orion",
        model_types=("orion",),
        architectures=("OrionForCausalLM",),
        norm="layer",
        norm_bias=True,
        eps_default=1e-5,
    ),
)
