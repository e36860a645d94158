"""Manifest of `my_plugin`. Every command reads it, so it imports no torch."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


class Arguments(msgspec.Struct, frozen=True):
    """Own arguments: `--mm-processor-config.KEY VALUE`."""

    grey: Annotated[float, msgspec.Meta(ge=0, le=1, description="Brightness of the margins: 0 black, 1 white.")] = 0.5


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(
        name="my_plugin",
        summary="whole pictures in squares with grey margins, for LLaVA",
        arguments=Arguments,
        capabilities={"modalities": ["image"]},
    )


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the processor."""
    from core_my_plugin.processor import Squares

    return Squares(context.options["media"], context.arguments or Arguments())
