"""Manifest of the `fastsafetensors` loader."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


class FastArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments under `--model-loader-extra-config`."""

    max_threads: Annotated[int, msgspec.Meta(ge=1, le=1024, description="Threads that copy.")] = 16
    bbuf_size_kb: Annotated[int, msgspec.Meta(ge=64, description="KiB of the bounce buffer of a copy.")] = 16 * 1024


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is. It claims nothing: users get it only when they ask for it."""
    return PluginSpec(
        name="fastsafetensors",
        summary="safetensors through fastsafetensors, without GPU direct storage; only when asked for",
        arguments=FastArguments,
    )


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the loader."""
    from core_plugins.loaders.fastsafetensors.loader import FastSafetensorsLoader

    return FastSafetensorsLoader(context.arguments or FastArguments())
