"""Loading of the executor that a configuration names, from the table of plugins.

Owns: loading its plugin, and the check of what it builds. Never does: choose one, compute, or name one.
Called by: the engine process, the client in one process.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable

from core.api.config import EngineConfig
from core.api.errors import CoreError, PluginError
from core.engine.executor import Executor, ExecutorMaker
from core.plugin.discovery import label
from core.plugin.distributions import own_row
from core.plugin.hookspecs import LoadContext
from core.plugin.manifest import load_manifest
from core.plugin.signatures import missing_parts
from core.plugin.table import PluginTable

KIND = "executor"
ExecutorFactory = Callable[[EngineConfig], Executor]


def build_executor(config: EngineConfig) -> Executor:
    """Build the chosen executor. Raises UserError, and PluginError when its plugin fails or builds something else."""
    name = config.plugins.executor
    plugins = PluginTable(config.plugins.table)
    arguments = config.plugins.arguments.get(f"{KIND}.{name}")
    context = LoadContext(device=config.device, dtype=config.model.dtype, arguments=arguments, config=config)
    maker: ExecutorMaker = plugins.load(KIND, name, context)
    try:
        executor = maker.build(config)
    except Exception as error:
        plugins.blame(error)
        raise
    # A plugin may return anything; here the error names the plugin, later it would be an AttributeError of some step.
    lacking = missing_parts([Executor], executor)
    if lacking:
        row = plugins.row(KIND, name)
        built = f"build answered a {type(executor).__name__} without {', '.join(lacking)}"
        raise PluginError(f"{label(row)}: {built}; see core.engine.executor.Executor.", row)
    return executor


def import_executor(target: str | None) -> tuple[ExecutorFactory, float]:
    """Import an executor before the configuration is known, because importing is the slowest part of a start.

    target: MODULE:CLASS of an executor that is no plugin; None: the default plugin; empty: none before it is chosen.

    Returns the factory of the executor, and the seconds that the import took.
    """
    begin = time.perf_counter()
    factory: ExecutorFactory = build_executor
    if target is None:
        _import_usual()
    elif target:
        module, _, name = target.partition(":")
        factory = getattr(importlib.import_module(module), name)
    return factory, time.perf_counter() - begin


def _import_usual() -> None:
    """Have the default executor import its libraries, so that loading it later takes no time."""
    row = own_row(KIND)
    if row is None:
        return
    with contextlib.suppress(CoreError):  # `build_executor` raises it again, if this is the executor that was chosen
        load_manifest(row).call("core_load", context=LoadContext())
