"""The counts of API keys that a server shares with others of its machine (`--shared-limits`).

Owns: their creation from the server's settings. Never does: count. Called by: `core_apis.app`, `core serve` of several models.
"""

from __future__ import annotations

from core_config.served.server_config import ServerConfig
from core_frontend.queue.common import CommonCounts


def common_counts(server: ServerConfig) -> CommonCounts | None:
    """Return the counts that a server shares; None: it shares none. Raises UserError for a directory that cannot be used."""
    directory = server.limits.shared_limits
    return None if directory is None else CommonCounts(directory, server.keys)
