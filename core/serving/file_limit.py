"""How many connections the process's limit of open files leaves room for.

Owns: reading that limit, and raising it as far as the system allows. Never does: count connections.
Called by: `core.serving.launch` (before anything slow starts), the HTTP server.
"""

from __future__ import annotations

import resource

from core.api.errors import UserError

RESERVED_FILES = (
    64  # for everything but connections: the engine's sockets, modules, threads, caches, answers on their way
)
LEAST_CONNECTIONS = 8


def connection_limit(wanted: int) -> int:
    """`wanted` connections, or as many as the limit of open files allows.

    Raises UserError when that is next to none: a server without files to open would be silent.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + RESERVED_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    limit = wanted if soft == resource.RLIM_INFINITY else min(wanted, soft - RESERVED_FILES)
    if limit < min(wanted, LEAST_CONNECTIONS):
        raise UserError(
            f"This process may open {soft} files, too few to serve; expected {RESERVED_FILES + LEAST_CONNECTIONS} or "
            "more. Raise the limit with `ulimit -n`."
        )
    return limit
