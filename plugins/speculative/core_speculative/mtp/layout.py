"""The layouts of layers for multi-token prediction (arXiv 2412.19437, section 2.2) in several model families.

Owns: a row for each layout, with its families. Never does: compute, import torch. Called by: the manifest.

All of them normalize embedding and hidden state, project the two side by side, run one block of the model's kind and
use the model's own embedding and head. `{layer}` in names is the number after that of the model's last layer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from core.api.errors import UserError
from core.api.specs import AttentionSpec, LatentSpec, StateSpec
from core.plugin.hookspecs import DraftContext
from core_runtime.models.families.wrappers import text_config
from core_runtime.specs.block_spec import BlockSpec
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.draft_spec import BEHIND_NORM, DraftInput, DraftSpec
from core_speculative.drafts import is_there, target_decoder


class MTPRow(msgspec.Struct, frozen=True, kw_only=True):
    """One layout.

    families: names of rows in the table of model families.
    count: key of the configuration with the number of these layers; an absent key counts as 0.
    module: module of the layer.
    joined: the projection of embedding and hidden state. The checkpoint has the layer if it has this module.
    names: published names → canonical names; an empty one is not read.
    hidden_first: whether the hidden state is the left half of the projection's input.
    dense: whether the block has an MLP where others of the model have experts.
    """

    families: tuple[str, ...]
    module: str
    joined: str
    names: tuple[tuple[str, str], ...]
    count: str = "num_nextn_predict_layers"
    hidden_first: bool = False
    dense: bool = False


QWEN_NAMES: Final = (
    ("mtp.pre_fc_norm_embedding.*", "input.embed_norm.*"),
    ("mtp.pre_fc_norm_hidden.*", "input.hidden_norm.*"),
    ("mtp.norm.*", "model.norm.*"),
)

ROWS: Final = (
    MTPRow(
        families=("deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe", "glm4_moe_lite"),
        module="model.layers.{layer}",
        joined="model.layers.{layer}.eh_proj",
        names=(
            ("model.layers.{layer}.enorm.*", "input.embed_norm.*"),
            ("model.layers.{layer}.hnorm.*", "input.hidden_norm.*"),
            ("model.layers.{layer}.shared_head.norm.*", "model.norm.*"),
            ("model.layers.{layer}.shared_head.head.*", ""),
            ("model.layers.{layer}.embed_tokens.*", ""),
        ),
    ),
    MTPRow(
        families=("qwen3_next", "exaone_moe"),
        module="mtp.layers.0",
        joined="mtp.fc",
        names=QWEN_NAMES,
    ),
    MTPRow(
        families=("qwen3_5", "qwen3_5_moe"),
        count="mtp_num_hidden_layers",
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


def mtp_spec(context: DraftContext) -> DraftSpec:
    """Return the draft that is the model's own layer. Raises UserError where it has none."""
    if context.has_checkpoint:
        raise UserError(
            "--speculative-config.model: 'mtp' drafts with a layer of the model's own checkpoint; leave 'model' out."
        )
    target = target_decoder(context)
    row = _row_of(target.family)
    index = len(target.blocks)
    _check_there(row, context.hf_config, context.tensors, index)
    names = [(row.joined, "input.joined"), *row.names, (row.module, f"model.layers.{index}")]
    block = _block_of(target, dense=row.dense)
    joined = DraftInput(
        kind="joined",
        hidden_first=row.hidden_first,
        bias=f"{row.joined.format(layer=index)}.bias" in context.tensors,
        embed_norm=target.norm,
        hidden_norm=target.norm,
    )
    return DraftSpec(
        decoder=msgspec.structs.replace(target, blocks=(block,), first_block=index, taps=()),
        input=joined,
        taps=(BEHIND_NORM,),
        carries="normed",
        shares_embedding=True,
        shares_head=True,
        names=tuple((_pattern(published, index), _pattern(canonical, index)) for published, canonical in names),
    )


def _row_of(family: str) -> MTPRow:
    for row in ROWS:
        if family in row.families:
            return row
    known: list[str] = []
    for row in ROWS:
        known += row.families
    raise UserError(
        f"--speculative-config.method mtp: models of the family '{family}' have no layer for it that is known here; known are "
        f"{', '.join(sorted(known))}."
    )


def _check_there(row: MTPRow, hf_config: Mapping[str, Any], tensors: Collection[str], index: int) -> None:
    """Raise UserError where the checkpoint has no such layer, or its configuration says so."""
    count = text_config(hf_config).get(row.count)
    module = row.joined.format(layer=index)
    if count and is_there(tensors, module):
        return
    why = f"it has no tensors of '{module}'" if count else f"{row.count} is {count!r} in its configuration"
    raise UserError(
        f"--speculative-config.method mtp: the model has no layer that drafts: {why}. Repacked checkpoints often leave it out; "
        "choose another method, or the original checkpoint."
    )


def _block_of(target: DecoderSpec, *, dense: bool) -> BlockSpec:
    """Return a block like the last full-attention block of the model. Raises UserError where there is none."""
    for block in reversed(target.blocks):
        mixer = block.mixer
        if mixer is None or isinstance(mixer, StateSpec) or mixer.window is not None or block.beside is not None:
            continue
        own = msgspec.structs.replace(block, mixer=with_own_index(mixer))
        return msgspec.structs.replace(own, experts=None) if dense else own
    raise UserError("--speculative-config.method mtp: no layer of the model sees everything before it.")


def with_own_index(mixer: AttentionSpec | LatentSpec) -> AttentionSpec | LatentSpec:
    """Return the mixer of a draft, whose index cannot reuse the choice of a layer before it."""
    if not isinstance(mixer, LatentSpec) or mixer.index is None:
        return mixer
    return msgspec.structs.replace(mixer, index=msgspec.structs.replace(mixer.index, reuses=False))


def _pattern(name: str, index: int) -> str:
    """Return a name with the layer's number, with `*` for all tensors of the module where it names a module."""
    numbered = name.format(layer=index)
    return numbered if not numbered or "*" in numbered else f"{numbered}.*"
