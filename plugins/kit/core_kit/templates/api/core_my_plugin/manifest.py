"""Manifest of `my_plugin`. Every command reads it, so it imports no torch and nothing that serves HTTP."""

from __future__ import annotations

from typing import Any

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(name="my_plugin", summary="POST /v1/my_plugin: continues a text in capital letters")


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the API."""
    from core_my_plugin.api import MyPluginApi

    return MyPluginApi()
