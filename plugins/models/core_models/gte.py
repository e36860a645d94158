"""Encoders in BERT's order whose queries and keys rotate: GTE and Jina Embeddings v3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from core_models.bert import ALL_BIASES, HEADS
from core_runtime.models.configuration import Configuration, configuration
from core_runtime.models.families.class_heads import OF_BERT, OF_ROBERTA, SEQUENCE, HeadRow, Heads, LayerRow
from core_runtime.models.families.row import Family
from core_runtime.models.weight_rules import Cut, Ignored, Rename, WeightRule, modules
from core_runtime.specs.block_spec import HeadsSpec
from core_runtime.specs.decoder_spec import DecoderSpec

GATED_BIASES: Final = {**ALL_BIASES, "mlp": False, "down": True}
UNUSED: Final = Ignored(r"((\w+\.)?pooler|cls|lm_head|classifier|qa_outputs)\..*", HEADS)
EMBEDDINGS: Final = (
    UNUSED,
    Rename(r"^(roberta|gte|new)\.", ""),
    Rename(r"^(embeddings\.LayerNorm|emb_ln)\.", "model.embed_norm."),
    Rename(r"^embeddings\.word_embeddings\.", "model.embed_tokens."),
    Rename(r"^embeddings\.token_type_embeddings\.", "model.token_type_embeddings."),
    Rename(r"^encoder\.layers?\.", "model.layers."),
)
GTE_WEIGHTS: Final[tuple[WeightRule, ...]] = (
    *EMBEDDINGS,
    *modules(
        ("attention", "self_attn"),
        ("attn_ln", "post_attention_layernorm"),
        ("mlp_ln", "post_feedforward_layernorm"),
    ),
    Cut(r"(.*\.mlp)\.up_gate_proj\.weight", r"\1.{piece}.weight", ("up_proj", "gate_proj")),
)
JINA_WEIGHTS: Final[tuple[WeightRule, ...]] = (
    *EMBEDDINGS,
    *modules(
        ("mixer.Wqkv", "self_attn.qkv_proj"),
        ("mixer.out_proj", "self_attn.o_proj"),
        ("norm1", "post_attention_layernorm"),
        ("norm2", "post_feedforward_layernorm"),
        ("mlp.fc1", "mlp.up_proj"),
        ("mlp.fc2", "mlp.down_proj"),
    ),
)
OF_GTE: Final[Heads] = {
    **OF_BERT,
    SEQUENCE: HeadRow(
        kind="cls",
        layers=(LayerRow(source=r"(?:\w+\.)?pooler\.dense", activation="tanh"), LayerRow(source="classifier")),
    ),
}


def first_gte(hf_config: Mapping[str, Any]) -> Configuration:
    """Return a configuration of the first GTE with the stretch of its rotary embedding under the usual names.

    `ntk` multiplies the base by its factor f, and divides all frequencies by f ** (2 / size of a head).
    """
    config = configuration(hf_config)
    config.choice("position_embedding_type", {"rope": "rope"}, "rope")
    config.choice("layer_norm_type", {"layer_norm": "layer_norm"}, "layer_norm")
    if config.flag("logn_attention_scale"):
        config.fail("logn_attention_scale", True, "false")
    scaling = config.mapping("rope_scaling")
    kind = scaling.choice("type", {"ntk": "ntk", "": ""}, "")
    if not kind:
        return config
    if scaling.get("mixed_b") is not None:
        scaling.fail("mixed_b", scaling["mixed_b"], "null")
    factor = scaling.number("factor", low=1.0)
    size = config.positive("hidden_size") // config.positive("num_attention_heads")
    stretched = {
        "rope_type": "linear",
        "rope_theta": config.number("rope_theta", 10000.0) * factor,
        "factor": factor ** (2 / size),
    }
    return config.overlaid({"rope_scaling": stretched})


def segments(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    """Set the number of segments, which may be 0."""
    return msgspec.structs.replace(spec, token_types=configuration(hf_config).count("type_vocab_size", 0))


def as_trained(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    """Divide the length by the linear part of the stretch, which lengthens no context here."""
    return segments(hf_config, msgspec.structs.replace(spec, max_position=round(spec.max_position / spec.stretch)))


def _rotating(name: str, model_types: tuple[str, ...], architecture: str, **own: Any) -> Family:
    """Return an encoder whose norms follow each addition, and whose heads rotate. own: the other fields."""
    endings = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
    return Family(
        name=name,
        model_types=model_types,
        architectures=tuple(f"{architecture}{ending}" for ending in endings),
        encoder=True,
        order="residual_post",
        norm="layer",
        norm_bias=True,
        final_norm=False,
        embed_norm=True,
        heads=HeadsSpec(fused="rows"),
        **own,
    )


FIRST = _rotating(
    "new",
    ("new",),
    "New",
    class_heads=OF_GTE,
    neutral={
        "pack_qkv = true": "the only way",
        "unpad_inputs": "how it is computed",
        "use_memory_efficient_attention": "attention backends are plugins here",
    },
    usual=first_gte,
    biases=GATED_BIASES,
    eps_default=1e-12,
    weights=GTE_WEIGHTS,
    adjust=as_trained,
)
"""GTE as it was published first, with code of its own."""

ROWS: tuple[Family, ...] = (
    _rotating(
        "gte",
        ("gte",),
        "Gte",
        class_heads=OF_GTE,
        biases=GATED_BIASES,
        eps_default=1e-12,
        weights=GTE_WEIGHTS,
        adjust=segments,
    ),
    _rotating(
        "jina_embeddings_v3",
        ("jina_embeddings_v3",),
        "JinaEmbeddingsV3",
        class_heads=OF_ROBERTA,
        token_types="type_vocab_size",
        gated=False,
        biases=ALL_BIASES,
        eps_default=1e-5,
        weights=JINA_WEIGHTS,
    ),
)
