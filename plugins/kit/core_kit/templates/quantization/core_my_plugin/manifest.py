"""Manifest of `my_plugin`. Every command reads it, so it imports no torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from core.api.reason import Reason
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_runtime.specs.checkpoint import CheckpointFacts

CONTRACT = 1
PLAIN = {"F64", "F32", "F16", "BF16", "I64", "BOOL"}  # the last two are buffers that nobody reads


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """What users write as `--quantization-config.KEY`."""

    group_size: Annotated[Literal[16, 32, 64], msgspec.Meta(description="Weights that share a scale.")] = 32


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(name="my_plugin", summary="8-bit integers in groups, made while loading", arguments=Arguments)


@hookimpl
def core_supports(query: CheckpointFacts) -> list[Reason]:
    """Only plain numbers can be quantized while they load."""
    packed = [dtype for dtype in query.tensor_dtypes if dtype not in PLAIN]
    if not packed:
        return []
    return [Reason("checkpoint", "plain numbers", ", ".join(packed), "leave --quantization out")]


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the method; torch may be imported from here on."""
    from core_my_plugin.method import Method

    return Method((context.arguments or Arguments()).group_size)
