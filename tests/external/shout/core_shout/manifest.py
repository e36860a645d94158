"""Manifest of `shout`. Every command reads it, so it imports no torch and nothing that serves HTTP."""

from __future__ import annotations

from typing import Any

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is."""
    return PluginSpec(name="shout", summary="POST /v1/shout: continues a text in capital letters")


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the API."""
    from core_shout.api import ShoutApi

    return ShoutApi()
