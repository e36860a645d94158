"""The operating system's limits for this process: open files and stack.

Owns: raising these limits as far as allowed, refusing too small ones, and a warning when files run out. Never does:
count or close connections. Called by: `core serve`, before it starts the engine process, which inherits the limits; the
launcher.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import sys
import threading
from typing import TYPE_CHECKING

import msgspec

from core.api.errors import UserError

if TYPE_CHECKING:
    from core_config.served.server_config import ServerConfig

logger = logging.getLogger(__name__)

MOST_FILES = 1 << 20
"""The limit that a Linux system usually allows; some containers allow a thousand times as many."""
RESERVED_FILES = 72
"""Open files that the server itself needs: about 45, and connections that are accepted only to make room or to be
refused.
"""
LEAST_CONNECTIONS = 8
STACK_BYTES = 8 << 20
LEAST_STACK_BYTES = 1 << 20
"""Minimum stack that nested bodies and templates may need."""
WATCH_SECONDS = 1.0


def raise_limits() -> None:
    """Raise the limit on open files as far as allowed, and that of stacks to the usual size.

    Raises UserError if that is not enough to serve.
    """
    files = _raise(resource.RLIMIT_NOFILE, MOST_FILES)
    least = RESERVED_FILES + LEAST_CONNECTIONS
    if files < least:
        raise UserError(
            f"This process may open {files} files at once; the server needs at least {least}. "
            "Raise the limit with `ulimit -n 4096`, or where the service is defined."
        )
    stack = _raise(resource.RLIMIT_STACK, STACK_BYTES)
    if stack < LEAST_STACK_BYTES:
        raise UserError(
            f"The stack of this process is limited to {stack >> 10} KB; the server needs at least "
            f"{LEAST_STACK_BYTES >> 10} KB. Raise the limit with `ulimit -s 8192`, or where the service is defined."
        )
    threading.stack_size(min(stack, STACK_BYTES))  # the system's default was fixed before the limit was raised


def fit_connections(server: ServerConfig) -> ServerConfig:
    """Limit the connections of `server` to the number of available files; log a warning if that lowers them."""
    files, wanted = _limit(resource.RLIMIT_NOFILE)[0], server.limits.max_connections
    room = files - RESERVED_FILES
    if wanted <= room:
        return server
    logger.warning(
        "--max-connections is %d, but this process may open %d files at once: %d connections are served. "
        "Raise the limit with `ulimit -n %d`, or set --max-connections.",
        *(wanted, files, room, wanted + RESERVED_FILES),
    )
    limits = msgspec.structs.replace(server.limits, max_connections=room)
    return msgspec.structs.replace(server, limits=limits)


async def watch_files() -> None:
    """Report once no file can be opened any more: the event loop then refuses connections without a word."""
    import asyncio  # not at the top: the engine process is spawned before asyncio is imported

    while True:
        await asyncio.sleep(WATCH_SECONDS)
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            logger.error(
                "New connections are refused: %s (this process may open %d). Raise the limit with `ulimit -n`, or set "
                "--max-connections.",
                *(error.strerror, _limit(resource.RLIMIT_NOFILE)[0]),
            )


def _raise(kind: int, wanted: int) -> int:
    """Raise a soft limit to `wanted`, as far as allowed; never lower it. Return the resulting limit."""
    soft, hard = _limit(kind)
    allowed = min(wanted, hard)
    if soft < allowed:
        _, raw_hard = resource.getrlimit(kind)
        with contextlib.suppress(ValueError, OSError):  # some systems report a hard limit that they do not grant
            resource.setrlimit(kind, (allowed, raw_hard))
    soft, _ = _limit(kind)
    return soft


def _limit(kind: int) -> tuple[int, int]:
    """Return the soft and the hard limit as numbers that can be compared even if there is no limit."""
    soft, hard = resource.getrlimit(kind)
    if soft == resource.RLIM_INFINITY:
        soft = sys.maxsize
    if hard == resource.RLIM_INFINITY:
        hard = sys.maxsize
    return soft, hard
