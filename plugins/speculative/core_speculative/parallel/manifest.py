"""Manifest of the `parallel` proposer: a smaller model, trained to give all its drafts in one pass (PARD)."""

from __future__ import annotations

from core.plugin.hookspecs import DraftContext, PluginSpec, hookimpl
from core_runtime.specs.draft_spec import DraftSpec
from core_speculative.draft_model.shape import model_draft

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin: its name and summary."""
    return PluginSpec(name="parallel", summary="drafts of a smaller model, all from one pass over mask tokens (PARD)")


@hookimpl
def core_draft_spec(context: DraftContext) -> DraftSpec:
    """Describe the draft: the whole model, and its mask token."""
    return model_draft(context, parallel=True)
