"""Manifest of the `mtp` proposer."""

from __future__ import annotations

from core.plugin.hookspecs import DraftContext, PluginSpec, hookimpl
from core_runtime.specs.draft_spec import DraftSpec

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin: its name and summary."""
    return PluginSpec(name="mtp", summary="the model's own layer that guesses a token more (multi-token prediction)")


@hookimpl
def core_draft_spec(context: DraftContext) -> DraftSpec | None:
    """Describe the draft: a layer of the target's own checkpoint."""
    from core_speculative.mtp.layout import mtp_spec

    return mtp_spec(context)
