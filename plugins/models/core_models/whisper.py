"""Whisper's decoder: each of its layers is two blocks, self attention, then cross attention with the MLP.

Owns: the row, the translation of its configuration, and the names of its tensors. Never does: compute the encoder
(`core_media` does). Called by: the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from core.api.specs import StateSpec
from core_runtime.models.configuration import Configuration, configuration, positive
from core_runtime.models.families.row import Family
from core_runtime.models.state_ops.cross_attention import cross_attention
from core_runtime.models.weight_rules import Ignored, Rename, WeightRule
from core_runtime.specs.block_spec import BlockSpec
from core_runtime.specs.decoder_spec import DecoderSpec

BLOCKS_EACH = 2
"""Blocks of a layer."""
TENSORS = (
    ("self_attn.out_proj", 0, "self_attn.o_proj"),
    ("self_attn", 0, "self_attn"),
    ("self_attn_layer_norm", 0, "input_layernorm"),
    ("encoder_attn", 1, "mixer"),
    ("encoder_attn_layer_norm", 1, "input_layernorm"),
    ("final_layer_norm", 1, "post_attention_layernorm"),
    ("fc1", 1, "mlp.up_proj"),
    ("fc2", 1, "mlp.down_proj"),
)
"""Modules of a layer: name in the checkpoint, block of the layer, and name in that block."""


def _usual(hf_config: Mapping[str, Any]) -> Configuration:
    """Return the decoder's sizes under usual names; transformers' class names the encoder's so."""
    config = configuration(hf_config)
    return config.overlaid({
        "num_hidden_layers": BLOCKS_EACH * config.positive("decoder_layers"),
        "num_attention_heads": config.positive("decoder_attention_heads"),
        "num_key_value_heads": config.positive("decoder_attention_heads"),
        "intermediate_size": config.positive("decoder_ffn_dim"),
        "max_position_embeddings": config.positive("max_target_positions"),
    })  # fmt: skip


def _state(hf_config: Mapping[str, Any], index: int) -> StateSpec | None:
    """Return the cross attention of a layer's second block; the first one has self attention."""
    if index % BLOCKS_EACH == 0:
        return None
    hidden = positive(hf_config, "hidden_size")
    heads = positive(hf_config, "num_attention_heads")
    length = positive(hf_config, "max_source_positions")
    return cross_attention(heads=heads, head_size=hidden // heads, length=length, width=hidden)


def _block(hf_config: Mapping[str, Any], index: int, block: BlockSpec) -> BlockSpec:
    return block if index % BLOCKS_EACH else msgspec.structs.replace(block, has_mlp=False)


def _weights(hf_config: Mapping[str, Any], spec: DecoderSpec) -> tuple[WeightRule, ...]:
    rules: list[WeightRule] = [
        Ignored(r"(model\.)?encoder\..*", "the encoder is computed apart from the decoder"),
        Rename(r"^(model\.)?decoder\.", "model.decoder."),
        Rename(r"^model\.decoder\.layer_norm\.", "model.norm."),
        Rename(r"^model\.decoder\.embed_", "model.embed_"),
        Rename(r"^proj_out\.", "lm_head."),
    ]
    for index in range(len(spec.blocks) // BLOCKS_EACH):
        for name, offset, usual in TENSORS:
            own = rf"^model\.decoder\.layers\.{index}\.{name}\.".replace("attn.out", r"attn\.out")
            rules.append(Rename(own, f"model.layers.{BLOCKS_EACH * index + offset}.{usual}."))
    return tuple(rules)


ROWS = (
    Family(
        name="whisper",
        model_types=("whisper",),
        architectures=("WhisperForConditionalGeneration",),
        usual=_usual,
        neutral={
            "encoder_*": "the encoder is computed apart from the decoder",
            "num_mel_bins": "the encoder is computed apart from the decoder",
            "apply_spec_augment": "training",
            "mask_*": "training",
            "classifier_proj_size": "of a classifier",
            "use_weighted_layer_sum": "of a classifier",
            "scale_embedding": "transformers scales nothing by it",
            "median_filter_width": "of times of words",
            "is_encoder_decoder": "the encoder is computed apart from the decoder",
            "*suppress_tokens": "of transcriptions, whose own configuration says it again",
            "forced_decoder_ids": "of transcriptions, whose own configuration says it again",
        },
        norm="layer",
        norm_bias=True,
        eps_default=1e-5,
        learned_positions=0,
        rotary=False,
        gated=False,
        tied_by_default=True,
        biases={"query": True, "key": False, "value": True, "out": True, "mlp": True, "down": True},
        state=_state,
        block=_block,
        weights=_weights,
    ),
)
