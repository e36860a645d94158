"""Manifest of the `directory` resolver."""

from __future__ import annotations

from typing import Any

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin."""
    return PluginSpec(name="directory", summary="adapters in folders of --lora-directory, each under its folder's name")


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the resolver of the server's directory."""
    from core_adapters.resolvers.directory import DirectoryResolver

    return DirectoryResolver(context.options.get("directory"))
