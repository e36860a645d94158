"""The layer for multi-token prediction of a model, read from its configuration and checkpoint by the rows of layouts.

Owns: the choice of a row, the layer's block, and the refusals. Never does: compute, import torch. Called by: the
manifest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from core.api.errors import UserError
from core.api.specs import AttentionSpec, LatentSpec, StateSpec
from core.plugin.hookspecs import DraftContext
from core_runtime.models.families.wrappers import text_config
from core_runtime.specs.block_spec import BlockSpec, MLPSpec
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.draft_spec import BEHIND_NORM, DraftInput, DraftSpec
from core_speculative.drafts import is_there, target_decoder
from core_speculative.mtp.rows import ROWS, MTPRow

WINDOWED: Final = {"full_attention": False, "sliding_attention": True}
"""Kind of attention → whether it has a window."""


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
    block = _block_of(target, dense=row.dense, slides=_slides(row, context.hf_config, index))
    own_head = any(is_there(context.tensors, head.format(layer=index)) for head in row.heads)
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
        shares_head=not own_head,
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
        f"{', '.join(sorted(known))}. Choose ngram, suffix, a draft_model, or a head that was trained for the model (eagle, "
        "eagle3, medusa)."
    )


def _count(row: MTPRow, config: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the key that has the number of layers that draft, and its value; the first possible key where none is
    there.
    """
    for key in row.counts:
        if config.get(key) is not None:
            return key, config[key]
    return row.counts[0], row.usual_count or None


def _check_there(row: MTPRow, hf_config: Mapping[str, Any], tensors: Collection[str], index: int) -> None:
    """Raise UserError where the checkpoint has no such layer, or its configuration says so."""
    key, count = _count(row, text_config(hf_config))
    module = row.joined.format(layer=index)
    if count and is_there(tensors, module):
        return
    why = f"it has no tensors of '{module}'" if count else f"{key} is {count!r} in its configuration"
    raise UserError(
        f"--speculative-config.method mtp: the model has no layer that drafts: {why}. Repacked checkpoints often leave it out; "
        "choose another method, or the original checkpoint."
    )


def _slides(row: MTPRow, hf_config: Mapping[str, Any], index: int) -> bool:
    """Return whether the layer has the model's window. Raises UserError for an unknown kind of attention.

    index: number of the layer, after those of the model.
    """
    config = text_config(hf_config)
    for key in row.kinds:
        kinds = config.get(key)
        if kinds is None:
            continue
        place = 0 if key.startswith("mtp_") else index
        if not isinstance(kinds, list) or not all(kind in WINDOWED for kind in kinds[place : place + 1]):
            raise UserError(
                f"--speculative-config.method mtp: {key} is {kinds!r} in the model's configuration; expected a list of "
                f"{', '.join(WINDOWED)}."
            )
        if place < len(kinds):
            return WINDOWED[kinds[place]]
    return row.slides


def _block_of(target: DecoderSpec, *, dense: bool, slides: bool) -> BlockSpec:
    """Return a block like the last one of the model whose attention has a window, or none.

    Raises UserError where there is no such block.
    """
    for block in reversed(target.blocks):
        mixer = block.mixer
        if mixer is None or isinstance(mixer, StateSpec) or block.beside is not None:
            continue
        if (mixer.window is not None) is not slides:
            continue
        own = msgspec.structs.replace(block, mixer=with_own_index(mixer))
        return msgspec.structs.replace(own, experts=None, mlp=_plain_mlp(target)) if dense else own
    kind = "has a window, as the layer that drafts" if slides else "sees everything before it"
    raise UserError(f"--speculative-config.method mtp: no layer of the model {kind}.")


def _plain_mlp(target: DecoderSpec) -> MLPSpec | None:
    """Return the MLP of the last block without experts, None for the model's usual one."""
    for block in reversed(target.blocks):
        if block.experts is None and block.has_mlp:
            return block.mlp
    return None


def with_own_index(mixer: AttentionSpec | LatentSpec) -> AttentionSpec | LatentSpec:
    """Return the mixer of a draft, whose index cannot reuse the choice of a layer before it."""
    if not isinstance(mixer, LatentSpec) or mixer.index is None:
        return mixer
    return msgspec.structs.replace(mixer, index=msgspec.structs.replace(mixer.index, reuses=False))


def _pattern(name: str, index: int) -> str:
    """Return a name with the layer's number, with `*` for all tensors of the module where it names a module."""
    numbered = name.format(layer=index)
    return numbered if not numbered or "*" in numbered else f"{numbered}.*"
