"""Manifest of the executor `parrot`."""

from typing import Annotated

import msgspec

from core.plugin.hookspecs import PluginSpec, hookimpl

CONTRACT = 1


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """How it changes what it repeats."""

    shift: Annotated[int, msgspec.Meta(description="Added to each token.", ge=0)] = 0


@hookimpl
def core_spec():
    """Say what the plugin is."""
    return PluginSpec(
        name="parrot", summary="repeats the prompt", arguments=Arguments, capabilities={"devices": ["cpu"]}
    )


@hookimpl
def core_load(context):
    """Build the maker."""
    from core_parrot.executor import Maker

    return Maker((context.arguments or Arguments()).shift)
