"""Manifest of the `medusa` proposer."""

from __future__ import annotations

from typing import Any

from core.plugin.hookspecs import DraftContext, LoadContext, PluginSpec, hookimpl
from core_runtime.specs.draft_spec import BEHIND_NORM, DraftSpec
from core_speculative.counted import CountedArguments, check_count

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin: its name, summary and arguments."""
    return PluginSpec(
        name="medusa",
        summary="a small network for each draft position, on the model's last hidden state (Medusa)",
        arguments=CountedArguments,
    )


@hookimpl
def core_draft_spec(context: DraftContext) -> DraftSpec | None:
    """Describe the draft: heads, which read the last hidden state."""
    from core_speculative.medusa.layout import medusa_shape

    shape = medusa_shape(context)
    if context.arguments is not None:
        check_count(context.arguments.num_speculative_tokens, len(shape.heads), "heads")
    return DraftSpec(taps=(BEHIND_NORM,), num_drafts=len(shape.heads))


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the heads, which reads their tensors. Raises UserError for wrong shapes."""
    from core_speculative.medusa.heads import MedusaHeads

    return MedusaHeads(context)
