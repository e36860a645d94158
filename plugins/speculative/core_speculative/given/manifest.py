"""Manifest of the `given` proposer."""

from __future__ import annotations

from typing import Any

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin: requests bring their drafts in `extra_args`."""
    return PluginSpec(
        name="given",
        summary="drafts are the answer that a request brings along, so that computing it again is quick",
        capabilities={"reads_extra_args": True},
    )


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the proposer, which has no arguments."""
    from core_speculative.given.proposer import GivenProposer

    return GivenProposer()
