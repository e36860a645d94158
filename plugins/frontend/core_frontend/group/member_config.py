"""The configuration of one engine of a group.

Owns: `member_config`: what the engines of one machine share out, and what each has for itself. Never does: decide how many
there are. Called by: the sources of a group.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from core.api.config import CacheConfig, EngineConfig
from core_kv_connectors.handoff.roles import hands_on, moves_requests, of_member
from core_platforms.cpu.processors import place

CPU = "platform.cpu"


def member_config(config: EngineConfig, rank: int) -> EngineConfig:
    """Return the configuration of the engine of this rank. Compute threads and their processors are shared out.

    Each engine has memory for blocks of its own, as large as one engine's.
    """
    count = config.data_parallel_size
    if count == 1:
        return config
    plugins = config.plugins
    if plugins.platform == "cpu":
        arguments = {**plugins.arguments, CPU: _share(plugins.arguments.get(CPU, {}), rank, count)}
        plugins = msgspec.structs.replace(plugins, arguments=arguments)
    if moves_requests(config):
        arguments = {
            name: of_member(own, rank, count) if hands_on(name, own) else own for name, own in plugins.arguments.items()
        }
        plugins = msgspec.structs.replace(plugins, arguments=arguments)
    start = config.data_parallel_rank
    return msgspec.structs.replace(
        config, plugins=plugins, cache=_own_places(config.cache, start + rank), data_parallel_rank=start + rank
    )


def _share(arguments: dict[str, Any], rank: int, count: int) -> dict[str, Any]:
    """Return the threads of one of `count` engines, at least one. `threads` that are given are each engine's own."""
    threads, binding = arguments.get("threads"), arguments.get("thread_binding", "none")
    total, processors = place(None if threads is None else threads * count, binding)
    own = threads or max((total + count - 1 - rank) // count, 1)
    shared = {**arguments, "threads": own}
    if processors and own * count <= len(processors):
        first = rank * own
        shared["thread_binding"] = ",".join(map(str, processors[first : first + own]))
    elif processors:
        shared["thread_binding"] = "none"
    return shared


def _own_places(cache: CacheConfig, rank: int) -> CacheConfig:
    """Return the cache with a directory and addresses that no other engine has."""
    disk = cache.disk_path and str(Path(cache.disk_path) / f"engine-{rank}")
    events = cache.events
    if events is not None:
        replay = events.replay_endpoint and _own_endpoint(events.replay_endpoint, rank)
        events = msgspec.structs.replace(events, endpoint=_own_endpoint(events.endpoint, rank), replay_endpoint=replay)
    return msgspec.structs.replace(cache, disk_path=disk, events=events)


def _own_endpoint(endpoint: str, rank: int) -> str:
    """Return an address with the rank added to its port, or to its name, as vLLM's."""
    if urlsplit(endpoint).scheme != "tcp":
        return f"{endpoint}_dp{rank}"
    head, _, port = endpoint.rpartition(":")
    return f"{head}:{int(port) + rank}" if port.isdigit() else endpoint
