"""BLOOM and MPT: attention whose scores decrease with the distance (ALiBi, arXiv 2108.12409).

Owns: rows, the slopes of heads. Never does: hold weights. Called by: the table; other rows with slopes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from core.api.specs import AttentionSpec
from core_models.gpt2 import ALL_BIASES, four_times
from core_runtime.models.configuration import Configuration, configuration
from core_runtime.models.families.row import Family
from core_runtime.models.weight_rules import Rename, modules
from core_runtime.specs.block_spec import BlockSpec, HeadsSpec
from core_runtime.specs.decoder_spec import DecoderSpec

USUAL_MOST = 8.0


def slopes(num_heads: int, most: float = USUAL_MOST) -> tuple[float, ...]:
    """Return the slope of each head: powers of two whose exponents divide 0..`most` equally.

    If the number of heads is not a power of two, they take every second slope of the next power of two, then as many of
    the slopes between as they need.
    """
    count = 1
    while count < num_heads:
        count *= 2
    exponents = [most * number / count for number in range(1, count + 1)]
    if count != num_heads:
        exponents = [*exponents[1::2], *exponents[::2]]
    return tuple(2.0**-exponent for exponent in exponents[:num_heads])


def with_slopes(spec: DecoderSpec, values: tuple[float, ...]) -> DecoderSpec:
    """Return a model whose heads all have these slopes."""
    blocks = []
    for block in spec.blocks:
        mixer = block.mixer
        if isinstance(mixer, AttentionSpec):
            mixer = msgspec.structs.replace(mixer, alibi=True)
        blocks.append(msgspec.structs.replace(block, mixer=mixer))
    heads = msgspec.structs.replace(spec.heads, slopes=values)
    return msgspec.structs.replace(spec, heads=heads, blocks=tuple(blocks))


def _bloom_usual(hf_config: Mapping[str, Any]) -> Configuration:
    """Return the configuration with `n_embed`, an older key for the hidden size that takes precedence."""
    config = configuration(hf_config)
    if config.get("n_embed") is not None:
        config = config.overlaid({"hidden_size": config.positive("n_embed")})
    return four_times(config)


def _bloom_adjust(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    return with_slopes(spec, slopes(configuration(hf_config).positive("num_attention_heads")))


def _mpt_adjust(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    """Set the slopes of MPT.

    An `alibi_bias_max` other than 8 means one thing in transformers and another in the models' own code.
    """
    config = configuration(hf_config)
    attention = config.mapping("attn_config")
    for name, expected in (("alibi", True), ("qk_ln", False), ("prefix_lm", False)):
        if attention.flag(name, expected) is not expected:
            attention.fail(name, not expected, str(expected).lower())
    attention.choice("attn_type", {"multihead_attention": None}, "multihead_attention")
    if attention.number("alibi_bias_max", USUAL_MOST) != USUAL_MOST:
        attention.fail("alibi_bias_max", attention.get("alibi_bias_max"), "8")
    spec = with_slopes(spec, slopes(config.positive("num_attention_heads")))
    heads = msgspec.structs.replace(spec.heads, clip=attention.optional_number("clip_qkv", 0.0) or None)
    return msgspec.structs.replace(spec, heads=heads)


def _mpt_block(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    scale = configuration(hf_config).mapping("attn_config").optional_number("softmax_scale")
    mixer = block.mixer
    assert isinstance(mixer, AttentionSpec), "MPT attends"
    if scale is None:
        return block
    return msgspec.structs.replace(block, mixer=msgspec.structs.replace(mixer, scale=scale))


ROWS: tuple[Family, ...] = (
    Family(
        name="bloom",
        model_types=("bloom",),
        architectures=("BloomForCausalLM",),
        keys={"max_position_embeddings": "seq_length"},
        fixed={"hidden_act": "gelu_new"},
        usual=_bloom_usual,
        norm="layer",
        norm_bias=True,
        embed_norm=True,
        rotary=False,
        gated=False,
        biases=ALL_BIASES,
        heads=HeadsSpec(fused="groups"),
        weights=(
            Rename(r"^(transformer\.)?h\.", "model.layers."),
            Rename(r"^(transformer\.)?word_embeddings\.", "model.embed_tokens."),
            Rename(r"^(transformer\.)?word_embeddings_layernorm\.", "model.embed_norm."),
            Rename(r"^(transformer\.)?ln_f\.", "model.norm."),
            *modules(
                ("self_attention.query_key_value", "self_attn.qkv_proj"),
                ("self_attention.dense", "self_attn.o_proj"),
                ("mlp.dense_h_to_4h", "mlp.up_proj"),
                ("mlp.dense_4h_to_h", "mlp.down_proj"),
            ),
        ),
        adjust=_bloom_adjust,
    ),
    Family(
        name="mpt",
        model_types=("mpt",),
        architectures=("MptForCausalLM", "MPTForCausalLM"),
        keys={"max_position_embeddings": "max_seq_len"},
        fixed={"hidden_act": "gelu"},
        neutral={
            "expansion_ratio": "the MLP always has four times the hidden size",
            "embedding_fraction": "of gradients",
            "learned_pos_emb": "slopes take its place",
            "norm_type": "all compute the same",
            "attn_config.attn_impl": "attention backends are plugins here",
            "attn_config.attn_uses_sequence_id": "of packed training data",
            "attn_config.id2label": "of classifiers",
            "attn_config.label2id": "of classifiers",
        },
        usual=four_times,
        norm="layer",
        rotary=False,
        gated=False,
        heads=HeadsSpec(fused="rows"),
        weights=(
            Rename(r"^(transformer\.)?blocks\.", "model.layers."),
            Rename(r"^(transformer\.)?wte\.", "model.embed_tokens."),
            Rename(r"^(transformer\.)?norm_f\.", "model.norm."),
            *modules(
                ("norm_1", "input_layernorm"),
                ("norm_2", "post_attention_layernorm"),
                ("attn.Wqkv", "self_attn.qkv_proj"),
                ("attn.out_proj", "self_attn.o_proj"),
                ("ffn", "mlp"),
            ),
        ),
        block=_mpt_block,
        adjust=_mpt_adjust,
    ),
)
