"""The configuration and context with which the kit loads a KV connector.

Owns: these, and the sizes of pages and blocks in the checks. Never does: check anything. Called by: the case of a
plugin, and the checks of connectors.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from core.api.config import CacheConfig, EngineConfig, KVEventsConfig, ModelConfig, PluginChoices, SchedulerConfig
from core.plugin.hookspecs import LoadContext

BLOCK_SIZE = 4
PAGE_BYTES = 64
PRINT = "0a" * 16
_NUMBERS = itertools.count()


def config_of(directory: Path) -> EngineConfig:
    """A configuration that asks for everything that the engine's own connectors do."""
    place = directory / f"kv{next(_NUMBERS)}"
    return EngineConfig(
        model=ModelConfig(model="kit", served_names=("kit",)),
        cache=CacheConfig(
            block_size=BLOCK_SIZE,
            host_bytes=1 << 20,
            disk_path=str(place),
            disk_bytes=1 << 20,
            events=KVEventsConfig(endpoint=f"ipc://{place}.events"),
            metrics_sample=1.0,
        ),
        scheduler=SchedulerConfig(),
        plugins=PluginChoices(loader="none", platform="none"),
    )


def context_of(directory: Path, arguments: dict[str, Any]) -> LoadContext:
    """What `core_load` of a connector is given."""
    options = {"page_bytes": PAGE_BYTES, "fingerprint": lambda: PRINT}
    return LoadContext(arguments=arguments, config=config_of(directory), options=options)
