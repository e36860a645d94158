"""Encoders: every token sees every token of its sequence.

Owns: rows, and the translation of their configurations' own keys. Never does: hold weights, pool. Called by: the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from core_runtime.models.configuration import Configuration, configuration
from core_runtime.models.families.class_heads import OF_BERT, OF_DISTILBERT, OF_MODERNBERT, OF_ROBERTA
from core_runtime.models.families.row import Family
from core_runtime.models.weight_rules import Ignored, Rename, WeightRule, modules
from core_runtime.specs.block_spec import BlockSpec, HeadsSpec, PositionsSpec
from core_runtime.specs.decoder_spec import DecoderSpec

HEADS = "of a head that the model does not use: vectors are made of hidden states"
NO_DECODER = {
    'position_embedding_type = "absolute"': "the only way",
    "use_cache": "an encoder computes its sequence once",
}
BERT_WEIGHTS: tuple[WeightRule, ...] = (
    Ignored(r"(\w+\.)?pooler\..*", HEADS),
    Ignored(r"(cls|lm_head|classifier|qa_outputs|score)\..*", HEADS),
    Rename(r"^(bert|roberta)\.", ""),
    Rename(r"^embeddings\.LayerNorm\.", "model.embed_norm."),
    Rename(r"^embeddings\.word_embeddings\.", "model.embed_tokens."),
    Rename(r"^embeddings\.position_embeddings\.", "model.embed_positions."),
    Rename(r"^embeddings\.token_type_embeddings\.", "model.token_type_embeddings."),
    Rename(r"^encoder\.layer\.", "model.layers."),
    Rename(r"\.LayerNorm\.gamma$", ".LayerNorm.weight"),
    Rename(r"\.LayerNorm\.beta$", ".LayerNorm.bias"),
    *modules(
        ("attention.self.query", "self_attn.q_proj"),
        ("attention.self.key", "self_attn.k_proj"),
        ("attention.self.value", "self_attn.v_proj"),
        ("attention.output.dense", "self_attn.o_proj"),
        ("attention.output.LayerNorm", "post_attention_layernorm"),
        ("intermediate.dense", "mlp.up_proj"),
        ("output.dense", "mlp.down_proj"),
        ("output.LayerNorm", "post_feedforward_layernorm"),
    ),
)
ALL_BIASES = {"query": True, "key": True, "value": True, "out": True, "mlp": True}
NO_BIASES = {"query": False, "key": False, "value": False, "out": False, "mlp": False}


def _encoder_only(hf_config: Mapping[str, Any]) -> Configuration:
    """Return the same configuration. Raises UserError for a BERT that is a decoder, which is not served."""
    config = configuration(hf_config)
    if config.flag("is_decoder"):
        config.fail("is_decoder", True, "an encoder (false)")
    return config


def _roberta_adjust(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    """Start positions after the row of the padding token. The table has no rows beyond the last position."""
    first = configuration(hf_config).count("pad_token_id", 1) + 1
    positions = PositionsSpec(spec.max_position - first, first)
    return msgspec.structs.replace(spec, positions=positions, max_position=spec.max_position - first)


def _modern_usual(hf_config: Mapping[str, Any]) -> Configuration:
    """Return the configuration with layer kinds and windows.

    Every `global_attn_every_n_layers`-th layer, from the first, has full attention. The others see half of
    `local_attention` to both sides, or `sliding_window`.
    """
    config = configuration(hf_config)
    scaling = config.get("rope_scaling")
    if scaling is not None:  # it would apply to both kinds of layers, unlike in models with a base for each
        config.fail("rope_scaling", dict(scaling), "null; rope_parameters can say it for each kind of layer")
    every = config.positive("global_attn_every_n_layers", 3)
    kinds = config.list_of("layer_types", str)
    if not kinds:
        for index in range(config.positive("num_hidden_layers")):
            kinds.append("sliding_attention" if index % every else "full_attention")
    reach = config.positive("local_attention", 128) // 2
    if config.get("sliding_window") is not None:
        reach = config.count("sliding_window")
    return config.overlaid({"layer_types": kinds, "sliding_window": 2 * reach + 1})


def _modern_adjust(hf_config: Mapping[str, Any], spec: DecoderSpec) -> DecoderSpec:
    bias = configuration(hf_config).flag("norm_bias")
    return msgspec.structs.replace(spec, norm=msgspec.structs.replace(spec.norm, bias=bias))


def _modern_block(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    """Omit the first block's input norm: embeddings are normalized already."""
    return msgspec.structs.replace(block, input_norm=index > 0)


def _post_normed(**own: Any) -> Family:
    """Return an encoder whose norms follow each addition, as in BERT. own: the other fields."""
    return Family(
        encoder=True, order="residual_post", norm="layer", norm_bias=True, final_norm=False, embed_norm=True, **own
    )


def _bert(learned_positions: int, **own: Any) -> Family:
    """Return a row of BERT's own shape. learned_positions: see `Family`. own: the other fields."""
    return _post_normed(
        neutral=NO_DECODER,
        usual=_encoder_only,
        learned_positions=learned_positions,
        token_types="type_vocab_size",
        rotary=False,
        gated=False,
        biases=ALL_BIASES,
        weights=BERT_WEIGHTS,
        **own,
    )


ROWS: tuple[Family, ...] = (
    _bert(
        learned_positions=0,
        name="bert",
        model_types=("bert",),
        architectures=(
            "BertModel",
            "BertForMaskedLM",
            "BertForPreTraining",
            "BertForSequenceClassification",
            "BertForTokenClassification",
        ),
        class_heads=OF_BERT,
    ),
    _bert(
        learned_positions=2,
        name="roberta",
        model_types=("roberta", "xlm-roberta", "camembert"),
        architectures=(
            "RobertaModel",
            "RobertaForMaskedLM",
            "RobertaForSequenceClassification",
            "RobertaForTokenClassification",
            "XLMRobertaModel",
            "XLMRobertaForMaskedLM",
            "XLMRobertaForSequenceClassification",
            "XLMRobertaForTokenClassification",
            "CamembertModel",
            "CamembertForMaskedLM",
            "CamembertForSequenceClassification",
            "CamembertForTokenClassification",
        ),
        class_heads=OF_ROBERTA,
        adjust=_roberta_adjust,
    ),
    _post_normed(
        name="distilbert",
        model_types=("distilbert",),
        architectures=(
            "DistilBertModel",
            "DistilBertForMaskedLM",
            "DistilBertForSequenceClassification",
            "DistilBertForTokenClassification",
        ),
        keys={"intermediate_size": "hidden_dim"},
        neutral={"sinusoidal_pos_embds": "checkpoints have the table", "tie_weights_": "of a head"},
        class_heads=OF_DISTILBERT,
        eps_default=1e-12,
        learned_positions=0,
        rotary=False,
        gated=False,
        biases=ALL_BIASES,
        weights=(
            Ignored(r"(vocab_\w+|pre_classifier|classifier|qa_outputs)\..*", HEADS),
            Rename(r"^distilbert\.", ""),
            Rename(r"^embeddings\.LayerNorm\.", "model.embed_norm."),
            Rename(r"^embeddings\.word_embeddings\.", "model.embed_tokens."),
            Rename(r"^embeddings\.position_embeddings\.", "model.embed_positions."),
            Rename(r"^transformer\.layer\.", "model.layers."),
            *modules(
                ("attention.q_lin", "self_attn.q_proj"),
                ("attention.k_lin", "self_attn.k_proj"),
                ("attention.v_lin", "self_attn.v_proj"),
                ("attention.out_lin", "self_attn.o_proj"),
                ("sa_layer_norm", "post_attention_layernorm"),
                ("ffn.lin1", "mlp.up_proj"),
                ("ffn.lin2", "mlp.down_proj"),
                ("output_layer_norm", "post_feedforward_layernorm"),
            ),
        ),
    ),
    Family(
        name="modernbert",
        model_types=("modernbert",),
        architectures=(
            "ModernBertModel",
            "ModernBertForMaskedLM",
            "ModernBertForSequenceClassification",
            "ModernBertForTokenClassification",
        ),
        keys={"rope_theta": "global_rope_theta", "rope_local_base_freq": "local_rope_theta"},
        defaults={"sliding_window": None},
        neutral={
            "decoder_bias": "of a head",
            "sparse_*": "of a head",
            "deterministic_flash_attn": "attention backends are plugins here",
            "reference_compile": "how it is computed",
            "repad_logits_with_grad": "training",
            "position_embedding_type": "rotary embeddings are the only way",
            "embedding_dropout": "inference drops nothing",
        },
        usual=_modern_usual,
        encoder=True,
        class_heads=OF_MODERNBERT,
        norm="layer",
        eps_default=1e-5,
        embed_norm=True,
        fused_gate_up=True,
        heads=HeadsSpec(fused="rows"),
        weights=(
            Ignored(r"(head|decoder|classifier)\..*", HEADS),
            Rename(r"^(model\.)?layers\.", "model.layers."),
            Rename(r"^(model\.)?embeddings\.tok_embeddings\.", "model.embed_tokens."),
            Rename(r"^(model\.)?embeddings\.norm\.", "model.embed_norm."),
            Rename(r"^(model\.)?final_norm\.", "model.norm."),
            *modules(
                ("attn_norm", "input_layernorm"),
                ("mlp_norm", "post_attention_layernorm"),
                ("attn.Wqkv", "self_attn.qkv_proj"),
                ("attn.Wo", "self_attn.o_proj"),
                ("mlp.Wi", "mlp.gate_up_proj"),
                ("mlp.Wo", "mlp.down_proj"),
            ),
        ),
        block=_modern_block,
        adjust=_modern_adjust,
    ),
    _post_normed(
        name="nomic_bert",
        model_types=("nomic_bert",),
        architectures=("NomicBertModel", "NomicBertForMaskedLM"),
        class_heads={},
        token_types="type_vocab_size",
        biases=NO_BIASES,
        heads=HeadsSpec(fused="rows"),
        weights=(
            Ignored(r"(\w+\.)?pooler\..*", HEADS),
            Ignored(r"(cls|classifier)\..*", HEADS),
            Rename(r"^nomic_bert\.", ""),
            Rename(r"^emb_ln\.", "model.embed_norm."),
            Rename(r"^embeddings\.word_embeddings\.", "model.embed_tokens."),
            Rename(r"^embeddings\.token_type_embeddings\.", "model.token_type_embeddings."),
            Rename(r"^encoder\.layers\.", "model.layers."),
            *modules(
                ("attn.Wqkv", "self_attn.qkv_proj"),
                ("attn.out_proj", "self_attn.o_proj"),
                ("norm1", "post_attention_layernorm"),
                ("norm2", "post_feedforward_layernorm"),
                ("mlp.fc11", "mlp.up_proj"),
                ("mlp.fc12", "mlp.gate_proj"),
                ("mlp.fc2", "mlp.down_proj"),
            ),
        ),
    ),
)
