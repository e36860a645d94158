"""Manifest of the method `rows_fp8`."""

from typing import Annotated, Literal

import msgspec

from core.plugin.hookspecs import PluginSpec, hookimpl

CONTRACT = 1


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """The method's own arguments."""

    kind: Annotated[Literal["e4m3", "e5m2"], msgspec.Meta(description="Bits of exponent and mantissa.")] = "e4m3"


@hookimpl
def core_spec():
    """Say what the plugin is."""
    return PluginSpec(name="rows_fp8", summary="fp8 with one scale a row, made while loading", arguments=Arguments)


@hookimpl
def core_load(context):
    """Build the method."""
    from core_rows_fp8.method import RowsFp8

    return RowsFp8((context.arguments or Arguments()).kind)
