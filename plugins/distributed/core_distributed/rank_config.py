"""The configuration of one rank, from that of the engine.

Owns: how threads and the memory of the cache are shared out. Never does: choose. Called by: the executor.
"""

from __future__ import annotations

from typing import Any

import msgspec

from core.api.config import EngineConfig
from core_platforms.cpu.processors import place, usable_processors

CPU = "platform.cpu"


def rank_config(config: EngineConfig, rank: int, size: int, *, leads: bool | None = None) -> EngineConfig:
    """Return the configuration of a rank: its share of threads, processors and cache of its host.

    rank, size: place among the ranks of the host, and their number. leads: whether it is the first rank of all.
    """
    arguments: dict[str, dict[str, Any]] = {**config.plugins.arguments}
    if config.plugins.platform == "cpu":
        own = dict(arguments.get(CPU, {}))
        threads, processors = place(own.get("threads"), own.get("thread_binding", "none"))
        share = max(threads // size, 1)
        own["threads"] = share
        if processors:
            mine = [processors[place % len(processors)] for place in range(rank * share, (rank + 1) * share)]
            own["thread_binding"] = ",".join(map(str, mine))
        arguments[CPU] = own
    plugins = msgspec.structs.replace(config.plugins, arguments=arguments)
    cache = msgspec.structs.replace(config.cache, memory_bytes=config.cache.memory_bytes // size)
    config = msgspec.structs.replace(config, plugins=plugins, cache=cache)
    return (
        config if (rank == 0 if leads is None else leads) else msgspec.structs.replace(config, use_tqdm_on_load=False)
    )


def is_crowded(config: EngineConfig, size: int) -> bool:
    """Whether the ranks' threads outnumber the processors, so that a rank which looks for others keeps them from working."""
    threads: int = config.plugins.arguments.get(CPU, {}).get("threads") or 1
    return threads * size > len(usable_processors())
