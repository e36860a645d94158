"""Manifest of the `xgrammar` grammar backend."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from core.api.reason import Reason
from core.api.structured_outputs import GrammarSpec
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin."""
    return PluginSpec(name="xgrammar", summary="grammars compiled ahead for the whole vocabulary")


@hookimpl
def core_supports(query: GrammarSpec) -> list[Reason]:
    """Require the library, and return the parts of the specification that it does not honour."""
    if find_spec("xgrammar") is None:
        return [Reason("missing_library", "the package xgrammar", hint="pip install xgrammar")]
    if query.whitespace_pattern is not None:
        return [Reason("whitespace_pattern", "none", query.whitespace_pattern)]
    from core_grammars.xgrammar.own_terms import unhonoured

    return unhonoured(query)


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the backend."""
    from core_grammars.xgrammar.backend import XgrammarBackend

    return XgrammarBackend(context.options["vocabulary"])
