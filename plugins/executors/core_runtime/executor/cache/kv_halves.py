"""The worker halves of KV connectors, and the arena that they share with the worker.

Owns: `WorkerHalves`: one thread for each half, and when halves get and drop the memory of the KV cache. Never does: choose
blocks; the halves of the connectors in the scheduler do. Called by: the worker.
"""

from __future__ import annotations

from core.api.config import EngineConfig
from core.plugin.hookspecs import LoadContext
from core.plugin.table import PluginTable
from core_kv_connectors.halves.contract import Layout
from core_kv_connectors.halves.thread import HalfThread
from core_runtime.executor.cache.kv_memory import KVMemory


class WorkerHalves:
    """The halves of one worker, by the names of their connectors."""

    def __init__(self, config: EngineConfig, plugins: PluginTable) -> None:
        self._config = config
        self._plugins = plugins
        self._threads: list[HalfThread] = []

    def open(self, name: str, memory: KVMemory) -> HalfThread:
        """Build the worker half of a connector, and give it the cache. name: as in `--kv-connectors`. Raises PluginError."""
        arguments = self._config.plugins.arguments.get(f"kv_connector.{name}")
        context = LoadContext(
            device=self._config.device, arguments=arguments, config=self._config, options={"half": "worker"}
        )
        thread = HalfThread(self._plugins.load("kv_connector", name.partition("#")[0], context), name)
        self._threads.append(thread)
        self._register(thread, memory)
        return thread

    def register(self, memory: KVMemory) -> None:
        """Give all halves a cache that was allocated anew."""
        for thread in self._threads:
            self._register(thread, memory)

    def release(self) -> None:
        """Have all halves drop the cache, which is about to be freed."""
        for thread in self._threads:
            thread.release()

    def _register(self, thread: HalfThread, memory: KVMemory) -> None:
        arena = memory.arena
        widths = tuple(int(buffer.shape[1]) for buffer in arena)
        thread.register(arena, Layout(memory.num_blocks, widths, self._config.cache.block_size))
