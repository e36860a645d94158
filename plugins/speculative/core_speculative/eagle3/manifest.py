"""Manifest of the `eagle3` proposer."""

from __future__ import annotations

from typing import Annotated

import msgspec

from core.plugin.hookspecs import DraftContext, PluginSpec, hookimpl
from core_runtime.specs.draft_spec import DraftSpec

CONTRACT = 1


class Eagle3Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `eagle3` under `--speculative-config`."""

    parallel_drafting: Annotated[
        bool | None,
        msgspec.Meta(description="All drafts come from one pass. Unset: where the checkpoint was trained for it."),
    ] = None


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin: its name, summary and arguments."""
    return PluginSpec(
        name="eagle3",
        summary="a block that reads hidden states of several of the model's layers (EAGLE-3, P-EAGLE)",
        arguments=Eagle3Arguments,
    )


@hookimpl
def core_draft_spec(context: DraftContext) -> DraftSpec | None:
    """Describe the draft: one block on hidden states of several layers."""
    from core_speculative.eagle3.layout import eagle3_spec

    return eagle3_spec(context)
