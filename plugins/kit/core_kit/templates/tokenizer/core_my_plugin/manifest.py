"""Manifest of `my_plugin`. Every command reads it, so it imports no torch."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


class Arguments(msgspec.Struct, frozen=True):
    """Own arguments: `--tokenizer-config.KEY VALUE`."""

    end: Annotated[str, msgspec.Meta(min_length=1, description="Spelling of the token that ends an answer.")] = (
        "<|end|>"
    )


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(name="my_plugin", summary="words of words.json, and bytes", arguments=Arguments)


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the tokenizer."""
    from core_my_plugin.tokenizer import WordsAndBytes

    return WordsAndBytes(context.options["directory"], context.arguments or Arguments())
