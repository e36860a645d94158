"""Manifest of the `suffix` proposer (Oliaro et al. 2024, arXiv 2411.04975)."""

from __future__ import annotations

from typing import Any

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_speculative.suffix.arguments import SuffixArguments

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin: its name, summary and arguments."""
    return PluginSpec(
        name="suffix",
        summary="drafts from what followed the same words in the request and in earlier answers; needs no second model",
        arguments=SuffixArguments,
        capabilities={"learns": True},
    )


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the proposer, without any earlier answers."""
    from core_speculative.suffix.proposer import SuffixProposer

    return SuffixProposer(context.arguments or SuffixArguments())
