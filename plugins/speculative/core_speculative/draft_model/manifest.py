"""Manifest of the `draft_model` proposer: a smaller model, which the core runs."""

from __future__ import annotations

from typing import Annotated

import msgspec

from core.plugin.hookspecs import DraftContext, PluginSpec, hookimpl
from core_runtime.specs.draft_spec import DraftSpec
from core_speculative.draft_model.shape import model_draft

CONTRACT = 1


class DraftModelArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `draft_model` under `--speculative-config`."""

    parallel_drafting: Annotated[
        bool, msgspec.Meta(description="All drafts come from one pass, as of the method `parallel`.")
    ] = False


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin: its name, summary and arguments."""
    return PluginSpec(
        name="draft_model",
        summary="drafts of a smaller model with the same vocabulary (--speculative-config.model)",
        arguments=DraftModelArguments,
    )


@hookimpl
def core_draft_spec(context: DraftContext) -> DraftSpec:
    """Describe the draft: the whole model, in its family's shape."""
    arguments = context.arguments or DraftModelArguments()
    return model_draft(context, parallel=arguments.parallel_drafting)
