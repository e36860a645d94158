"""Manifest of `my_plugin`. Every command reads it, so it imports no torch."""

from __future__ import annotations

from typing import Any

from core.api.reason import Reason
from core.api.specs import KernelQuery
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is. A higher priority is asked first."""
    return PluginSpec(
        name="my_plugin",
        summary="8-bit matrices, multiplied group by group",
        capabilities={"devices": ["cpu"], "formats": ["int8_groups"]},
        priority=-10,
    )


@hookimpl
def core_supports(query: KernelQuery) -> list[Reason]:
    """Before anything is loaded: only matrix products. An empty format asks for any."""
    return [] if query.op == "linear" else [Reason("op", "linear", query.op)]


@hookimpl
def core_numerics() -> str:
    """Grows when results change."""
    return "my_plugin-1"


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the kernels; torch may be imported from here on."""
    from core_my_plugin.kernels import MyPluginKernels

    return MyPluginKernels()
