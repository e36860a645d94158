"""Manifest of the `llguidance` grammar backend."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from core.api.reason import Reason
from core.api.structured_outputs import GrammarSpec
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_grammars.llguidance.honoured import TABLE

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin."""
    return PluginSpec(
        name="llguidance",
        summary="grammars whose masks are computed as they are needed",
        priority=10,  # first: xgrammar takes a hundred times as long to compile, and its grammars are read in the worker
    )


@hookimpl
def core_supports(query: GrammarSpec) -> list[Reason]:
    """Require the library, and return the parts of the specification that it does not honour."""
    if find_spec("llguidance") is None:
        return [Reason("missing_library", "the package llguidance", hint="pip install llguidance")]
    from core_grammars.honoured import read_table
    from core_grammars.keywords import unhonoured_spec

    return unhonoured_spec(query, read_table(TABLE))


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the backend."""
    from core_grammars.llguidance.backend import LlguidanceBackend

    return LlguidanceBackend(context.options["vocabulary"])
