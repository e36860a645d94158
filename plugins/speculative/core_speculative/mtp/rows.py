"""The layouts of layers for multi-token prediction, as data: a row for each way in which they are published.

Owns: the rows, with their families. Never does: read a configuration or a checkpoint. Called by: the reading of layouts.

All of them normalize embedding and hidden state, project the two side by side, run one block of the model's kind and
use the model's own embedding and head (arXiv 2412.19437, section 2.2). `{layer}` in names is the number after that of
the model's last layer. Where a checkpoint has several such layers, each trained for a token further ahead, the first
one gives all drafts.
"""

from __future__ import annotations

from typing import Final

import msgspec


class MTPRow(msgspec.Struct, frozen=True, kw_only=True):
    """One layout.

    families: names of rows in the table of model families.
    counts: keys of the configuration, the first of which that is there has the number of these layers.
    usual_count: that number where the configuration has none of these keys.
    module: module of the layer.
    joined: the projection of embedding and hidden state. The checkpoint has the layer if it has this module.
    names: published names → canonical names; an empty one is not read.
    hidden_first: whether the hidden state is the left half of the projection's input.
    dense: whether the block has an MLP where others of the model have experts.
    slides: whether the block's attention has the model's window.
    kinds: keys of the configuration with the kind of attention of each of these layers, before `slides`; a list of all of
        the model's layers has them at its end.
    heads: modules that are the layer's own head, where a checkpoint has one of them.
    """

    families: tuple[str, ...]
    module: str
    joined: str
    names: tuple[tuple[str, str], ...]
    counts: tuple[str, ...] = ("num_nextn_predict_layers", "num_mtp_layers")
    usual_count: int = 0
    hidden_first: bool = False
    dense: bool = False
    slides: bool = False
    kinds: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()


QWEN_NAMES: Final = (
    ("mtp.pre_fc_norm_embedding.*", "input.embed_norm.*"),
    ("mtp.pre_fc_norm_hidden.*", "input.hidden_norm.*"),
    ("mtp.norm.*", "model.norm.*"),
)
NEXT_LAYER_NAMES: Final = (
    ("model.layers.{layer}.enorm.*", "input.embed_norm.*"),
    ("model.layers.{layer}.hnorm.*", "input.hidden_norm.*"),
    ("model.layers.{layer}.shared_head.head.*", ""),
    ("model.layers.{layer}.embed_tokens.*", ""),
)
STEP_HEADS: Final = ("model.layers.{layer}.shared_head.", "model.layers.{layer}.transformer.shared_head.")

ROWS: Final = (
    MTPRow(
        families=(
            "deepseek_v3",
            "deepseek_v32",
            "glm_moe_dsa",
            "glm4_moe",
            "glm4_moe_lite",
            "pangu_ultra_moe",
        ),
        module="model.layers.{layer}",
        joined="model.layers.{layer}.eh_proj",
        names=(*NEXT_LAYER_NAMES, ("model.layers.{layer}.shared_head.norm.*", "model.norm.*")),
    ),
    MTPRow(
        families=("hy_v3", "bailing_moe"),
        module="model.layers.{layer}",
        joined="model.layers.{layer}.eh_proj",
        names=(
            *NEXT_LAYER_NAMES,
            ("model.layers.{layer}.final_layernorm.*", "model.norm.*"),
            ("model.layers.{layer}.shared_head.*", ""),
        ),
    ),
    MTPRow(
        families=("longcat_flash",),
        usual_count=1,
        module="model.mtp.layers.0",
        joined="model.mtp.layers.0.eh_proj",
        names=(
            ("model.mtp.layers.0.enorm.m.*", "input.embed_norm.*"),
            ("model.mtp.layers.0.hnorm.m.*", "input.hidden_norm.*"),
            ("model.mtp.layers.0.transformer_layer.*", "model.layers.{layer}.*"),
            ("model.mtp.norm.*", "model.norm.*"),
            ("model.mtp.embed_tokens.*", ""),
        ),
        dense=True,
    ),
    MTPRow(
        families=("mimo_v2_flash",),
        usual_count=1,
        module="model.mtp.layers.0",
        joined="model.mtp.layers.0.eh_proj",
        names=(
            ("model.mtp.layers.0.enorm.*", "input.embed_norm.*"),
            ("model.mtp.layers.0.hnorm.*", "input.hidden_norm.*"),
            ("model.mtp.layers.0.pre_mlp_layernorm.*", "model.layers.{layer}.post_attention_layernorm.*"),
            ("model.mtp.layers.0.final_layernorm.*", "model.norm.*"),
        ),
        dense=True,
        slides=True,
    ),
    MTPRow(
        families=("qwen3_next", "exaone_moe"),
        module="mtp.layers.0",
        joined="mtp.fc",
        names=QWEN_NAMES,
    ),
    MTPRow(
        families=("mellum",),
        module="mtp.layers.0",
        joined="mtp.fc",
        names=QWEN_NAMES,
        slides=True,
        kinds=("mtp_layer_types",),
    ),
    MTPRow(
        families=("step3p5",),
        module="model.layers.{layer}",
        joined="model.layers.{layer}.eh_proj",
        names=(
            *NEXT_LAYER_NAMES,
            *((f"{head}norm.*", "model.norm.*") for head in STEP_HEADS),
            *((f"{head}output.*", "lm_head.*") for head in STEP_HEADS),
        ),
        dense=True,
        slides=True,
        kinds=("mtp_layer_types", "layer_types"),
        heads=tuple(f"{head}output" for head in STEP_HEADS),
    ),
    MTPRow(
        families=("qwen3_5", "qwen3_5_moe"),
        counts=("mtp_num_hidden_layers",),
        module="mtp.layers.0",
        joined="mtp.fc",
        names=QWEN_NAMES,
    ),
    MTPRow(  # MiMo-7B, whose other layers are Qwen2's
        families=("qwen2",),
        module="model.mtp_layers.0",
        joined="model.mtp_layers.0.input_proj",
        names=(
            ("model.mtp_layers.0.token_layernorm.*", "input.embed_norm.*"),
            ("model.mtp_layers.0.hidden_layernorm.*", "input.hidden_norm.*"),
            ("model.mtp_layers.0.final_layernorm.*", "model.norm.*"),
        ),
        hidden_first=True,
    ),
    MTPRow(
        families=("ernie4_5_moe",),
        module="model.mtp_block.0",
        joined="model.mtp_linear_proj.0",
        names=(
            ("model.mtp_emb_norm.0.*", "input.embed_norm.*"),
            ("model.mtp_hidden_norm.0.*", "input.hidden_norm.*"),
            ("model.norm.*", "model.norm.*"),  # the model's own norm before its head
        ),
        dense=True,
    ),
)
