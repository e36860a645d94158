"""Manifest of `my_plugin`. The core runs the draft that it describes, so there is nothing else, and no torch."""

from __future__ import annotations

import msgspec

from core.api.errors import UserError
from core.plugin.hookspecs import DraftContext, PluginSpec, hookimpl
from core_runtime.specs.draft_spec import DraftSpec

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(name="my_plugin", summary="drafts of the first layers of a smaller model")


@hookimpl
def core_draft_spec(context: DraftContext) -> DraftSpec:
    """A model with the same vocabulary, of which half the layers draft."""
    whole = context.decoder
    if whole is None:
        why = context.why_no_decoder or "missing; give the path or hub name of a model."
        raise UserError(f"--speculative-config.model: {why}")
    count = max(1, len(whole.blocks) // 2)
    half = msgspec.structs.replace(whole, blocks=whole.blocks[:count])
    not_read = [(f"model.layers.{layer}.*", "") for layer in range(count, len(whole.blocks))]
    return DraftSpec(decoder=half, names=tuple(not_read))
