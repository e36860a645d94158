"""Limits of API keys over all models of one server.

Owns: the directory in which the models' servers count together, and the places of requests that wait for a model. Never does:
count. Called by: `core_commands.several.launch`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from core_apis.callers.common_limits import common_counts
from core_config.arguments.sources import Merged
from core_config.served.server_config import ServerConfig
from core_frontend.queue.limit import QueueLimit
from core_frontend.queue.share import ShareLimits


def with_common_limits(server: ServerConfig, directory: Path) -> ServerConfig:
    """Return the settings with a directory in which the servers of all models count requests of keys together."""
    limits = server.limits
    if limits.shared_limits is None:
        limits = msgspec.structs.replace(limits, shared_limits=str(directory / "keys"))
    return msgspec.structs.replace(server, limits=limits)


def key_places(server: ServerConfig, merged: Merged) -> QueueLimit:
    """Return the limits of each key on requests that wait for their model; requests at the models count too.

    Raises UserError for a directory of shared limits that cannot be used.
    """
    per_key = ShareLimits(
        at_once=merged.value("max_num_reqs_per_key"), requests=merged.value("max_num_queued_reqs_per_key")
    )
    places = QueueLimit(0, 0, per_key=per_key)
    common = common_counts(server)
    if common is not None:
        places.share_with(common)
    return places
