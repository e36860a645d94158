"""Falcon: one matrix of queries, keys and values, parallel or sequential blocks, rotary embedding or slopes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from core_models.alibi import slopes, with_slopes
from core_runtime.models.configuration import Configuration, configuration
from core_runtime.models.families.row import Family
from core_runtime.models.weight_rules import modules
from core_runtime.specs.block_spec import HeadsSpec
from core_runtime.specs.decoder_spec import BlockOrder, DecoderSpec


def usual(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the configuration with usual keys for the MLP's size and for heads, whose number depends on three keys."""
    config = configuration(hf_config)
    values: dict[str, Any] = {
        "head_dim": None,
        "num_key_value_heads": _num_kv_heads(config),
        "hidden_act": config.text("activation", "gelu"),
    }
    if config.get("ffn_hidden_size") is None:
        values["ffn_hidden_size"] = 4 * config.positive("hidden_size")
    return config.overlaid(values)


def adjusted(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    """Set the order of blocks, and slopes in place of rotary embedding."""
    config = configuration(hf_config)
    spec = msgspec.structs.replace(spec, order=_order(config))
    if not config.flag("alibi", False):
        return spec
    blocks = [msgspec.structs.replace(block, rope=None) for block in spec.blocks]
    spec = msgspec.structs.replace(spec, blocks=tuple(blocks))
    num_heads = config.positive("num_attention_heads")
    scale = 1.0 / math.sqrt(config.positive("hidden_size") // num_heads)  # Falcon scales slopes together with scores
    return with_slopes(spec, tuple(scale * slope for slope in slopes(num_heads)))


def _num_kv_heads(config: Configuration) -> int:
    num_heads = config.positive("num_attention_heads")
    one_for_all = config.flag("multi_query", True)
    if config.flag("new_decoder_architecture", False):
        return config.positive("num_kv_heads", num_heads)
    return 1 if one_for_all else num_heads


def _order(config: Configuration) -> BlockOrder:
    is_new = config.flag("new_decoder_architecture", False)
    side_by_side = config.flag("parallel_attn", True)
    num_norms = config.count("num_ln_in_parallel_attn", 2 if is_new else 1)
    if is_new and not side_by_side:
        config.fail("parallel_attn", side_by_side, "true with new_decoder_architecture")
    if not side_by_side:
        return "pre"
    if num_norms == 2 and not is_new:
        config.fail("num_ln_in_parallel_attn", num_norms, "1 without new_decoder_architecture")
    return "parallel_two" if num_norms == 2 else "parallel"


ROWS = (
    Family(
        name="falcon",
        model_types=("falcon",),
        architectures=("FalconForCausalLM",),
        keys={
            "hidden_size": "n_embed",
            "intermediate_size": "ffn_hidden_size",
            "num_key_value_heads": "num_kv_heads",
        },
        neutral={
            "num_kv_heads": "counts with new_decoder_architecture alone",
            "apply_residual_connection_post_layernorm = false": "as always",
            "multi_query": "counts without new_decoder_architecture alone",
        },
        usual=usual,
        tied_by_default=True,
        norm="layer",
        norm_bias=True,
        heads=HeadsSpec(fused="groups"),
        biases={part: "bias" for part in ("query", "key", "value", "out", "mlp", "down")},
        gated=False,
        weights=modules(
            ("transformer.h", "model.layers"),
            ("transformer.word_embeddings", "model.embed_tokens"),
            ("transformer.ln_f", "model.norm"),
            ("ln_attn", "input_layernorm"),
            ("ln_mlp", "post_attention_layernorm"),
            ("self_attention.query_key_value", "self_attn.qkv_proj"),
            ("self_attention.dense", "self_attn.o_proj"),
            ("mlp.dense_h_to_4h", "mlp.up_proj"),
            ("mlp.dense_4h_to_h", "mlp.down_proj"),
        ),
        adjust=adjusted,
    ),
)
