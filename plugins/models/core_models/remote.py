"""Llamas under other names of tensors and keys, for which transformers has no class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from core_models.alibi import slopes, with_slopes
from core_models.scaled import scaled_by_depth
from core_runtime.models.configuration import configuration
from core_runtime.models.families.row import Family
from core_runtime.models.weight_rules import UnitRows, WeightRule, modules
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


ROWS = (
    Family(
        name="internlm",
        model_types=("internlm",),
        architectures=("InternLMForCausalLM",),
        keys={"attention_bias": "bias"},
        defaults={"attention_bias": True},
    ),
    Family(
        name="internlm2",
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
