"""Manifest of `my_plugin`. Every command reads it, so it imports no torch."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1
EXAMPLES = [
    {"question": "Who?", "document": "It rained.\n\nAda wrote it."},
    {"question": "a", "document": "b", "passages": 1},
]
"""Data of requests, for the kit's checks."""


class Arguments(msgspec.Struct, frozen=True):
    """Own arguments: `--io-processor-config.KEY VALUE`."""

    passages: Annotated[int, msgspec.Meta(ge=1, description="Passages in an answer, unless the request says so.")] = 2


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(
        name="my_plugin",
        summary="passages of a document that fit a question",
        arguments=Arguments,
        capabilities={"examples": EXAMPLES},
    )


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the IO processor."""
    from core_my_plugin.processor import Passages

    return Passages(context.arguments or Arguments())
