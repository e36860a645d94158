"""Manifest of `frozen_int8`: 8 bits a weight, quantized while loading."""

from typing import Annotated, Literal

import msgspec

from core.plugin.hookspecs import PluginSpec, hookimpl

CONTRACT = 1


class Int8Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """The method's own arguments."""

    scale_dtype: Annotated[Literal["float32", "float16"], msgspec.Meta(description="type of the scales")] = "float32"


@hookimpl
def core_spec():
    """Say what the plugin is."""
    return PluginSpec(name="frozen_int8", summary="one scale a row, 8 bits a weight", arguments=Int8Arguments)


@hookimpl
def core_load(context):
    """Build the method."""
    from core_frozen_contract_1.int8 import RowwiseInt8

    return RowwiseInt8((context.arguments or Int8Arguments()).scale_dtype)
