"""Manifest of the `eagle` proposer."""

from __future__ import annotations

from core.plugin.hookspecs import DraftContext, PluginSpec, hookimpl
from core_runtime.specs.draft_spec import DraftSpec

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin: its name and summary."""
    return PluginSpec(
        name="eagle", summary="a block that goes on with the model's last hidden state (EAGLE, EAGLE-2, HASS)"
    )


@hookimpl
def core_draft_spec(context: DraftContext) -> DraftSpec | None:
    """Describe the draft: one block on the target's last hidden state."""
    from core_speculative.eagle.layout import eagle_spec

    return eagle_spec(context)
