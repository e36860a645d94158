"""Manifest of `my_plugin`. Every command reads it, so it imports no torch."""

from __future__ import annotations

from typing import Any

from core.api.reason import Reason
from core.api.specs import AttentionQuery, AttentionSpec
from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Say what the plugin is, and what the core can check by itself."""
    return PluginSpec(
        name="my_plugin",
        summary="paged attention as the formula says",
        capabilities={"devices": ["cpu"], "kv_dtypes": ["float32", "bfloat16"], "cap": False, "sinks": False},
        priority=-10,
    )


@hookimpl
def core_supports(query: AttentionQuery) -> list[Reason]:
    """Everything else that is missing, each with a way out."""
    spec = query.spec
    assert isinstance(spec, AttentionSpec)  # other kinds of layers are asked of those that declare them
    if spec.head_size != spec.head_size_v:
        return [
            Reason("head_size_v", f"{spec.head_size}, as for queries", f"{spec.head_size_v}", "use another backend")
        ]
    return []


@hookimpl
def core_numerics() -> str:
    """Grows when results change."""
    return "my_plugin-1"


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Build the backend; torch may be imported from here on."""
    from core_my_plugin.backend import Backend

    return Backend()
