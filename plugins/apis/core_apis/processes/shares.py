"""The share of each limit that one of several API processes has.

Owns: which limits are divided, and how. Never does: enforce them. Called by: the supervisor.

A process may refuse a request for which another one still had room: connections are spread by the system, not by load.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from core.api.config import EngineConfig, SchedulerConfig
from core_config.served.server_config import ServerConfig
from core_formats.server_limits import ServerLimits

T = TypeVar("T", bound=msgspec.Struct)

DIVIDED_LIMITS = ("max_connections",)
DIVIDED_QUEUES = (
    "max_num_queued_reqs",
    "max_num_queued_tokens",
    "max_num_reqs_per_key",
    "max_num_queued_reqs_per_key",
    "max_num_queued_tokens_per_key",
)
"""Limits that are divided. 0 means no limit, and stays so."""

NOT_KEPT = ("max_stored_responses", "max_stored_response_bytes", "max_sessions_per_key")
"""Settings that become 0.

A response or session kept by one process is unknown to the others, which may get the next request, so none is kept. Sessions
in files are known to all.
"""


def share(total: int, number: int, count: int) -> int:
    """Return the part of `total` that process `number` of `count` has: at least 1, unless the total is 0.

    The parts add up to the total, unless it is less than `count`.
    """
    if total == 0:
        return 0
    part, rest = divmod(total, count)
    return max(1, part + (number < rest))


def engine_share(config: EngineConfig, number: int, count: int) -> EngineConfig:
    """Return the engine's configuration for process `number`."""
    scheduler: SchedulerConfig = _divided(config.scheduler, DIVIDED_QUEUES, number, count)
    return msgspec.structs.replace(config, scheduler=scheduler)


def server_share(config: ServerConfig, number: int, count: int, *, shares_sessions: bool = False) -> ServerConfig:
    """Return the server's settings for process `number`. shares_sessions: whether sessions are in files."""
    limits: ServerLimits = _divided(config.limits, DIVIDED_LIMITS, number, count)
    limits = msgspec.structs.replace(limits, **dict.fromkeys(NOT_KEPT, 0))
    if shares_sessions:
        limits = msgspec.structs.replace(limits, max_sessions_per_key=config.limits.max_sessions_per_key)
    return msgspec.structs.replace(config, limits=limits)


def _divided(limits: T, names: tuple[str, ...], number: int, count: int) -> T:
    parts = {name: share(getattr(limits, name), number, count) for name in names if name in limits.__struct_fields__}
    return msgspec.structs.replace(limits, **parts)
