"""Manifest of the executor `mp`. Torch-free; processes are started when the executor is built."""

from __future__ import annotations

from typing import Any

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_distributed.arguments import RanksArguments

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin. It is chosen by `--tensor-parallel-size`, never by itself."""
    return PluginSpec(
        name="mp",
        summary="models in PyTorch, divided over several processes, of this host or several (--tensor-parallel-size, --nnodes)",
        arguments=RanksArguments,
        priority=-1,
    )


@hookimpl
def core_load(context: LoadContext) -> Any:
    """Make the builder of the executor."""
    from core_distributed.maker import RanksMaker

    return RanksMaker(context.arguments or RanksArguments())
