"""Manifest of the executor `ray`. Torch-free and without Ray; both are imported when the executor is built."""

from __future__ import annotations

from typing import Any

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_distributed.arguments import RayArguments

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin. It is chosen by `--distributed-executor-backend ray`, never by itself."""
    return PluginSpec(
        name="ray",
        summary="models in PyTorch, divided over ranks in actors of a Ray cluster (--distributed-executor-backend ray)",
        arguments=RayArguments,
        priority=-2,
    )


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Make the builder of the executor."""
    from core_distributed.on_ray.maker import RayMaker

    return RayMaker(context.arguments or RayArguments())
