"""Manifest of the `draft_model` proposer: a smaller model, which the core runs."""

from __future__ import annotations

from core.api.draft_spec import DraftSpec
from core.api.errors import UserError
from core.plugin.hookspecs import DraftContext, PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(
        name="draft_model",
        summary="drafts of a smaller model with the same vocabulary (--speculative-config.model)",
    )


@hookimpl
def core_draft_spec(context: DraftContext) -> DraftSpec:
    """The whole model, as its family describes it."""
    if not context.has_checkpoint:
        raise UserError("--speculative-config.model: missing; give the path or hub name of the draft model.")
    if context.decoder is None:
        raise UserError(f"--speculative-config.model: {context.why_no_decoder}")
    return DraftSpec(decoder=context.decoder)
