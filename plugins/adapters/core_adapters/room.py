"""The memory that the reading of an adapter may take. Torch-free.

Owns: the limit. Never does: reserve memory. Called by: the reading of files, and of adapters that are sent.

A file may claim a terabyte that no disk holds, since what was never written takes no place in it; reading it would take the
memory of the engine and of all its neighbours.
"""

from __future__ import annotations

from typing import Final

from core.api.errors import UserError
from core_platforms.cpu.memory import available_memory

ALWAYS: Final = 64 << 20
"""Bytes that are read without asking."""
COPIES: Final = 3
"""How often an adapter is in memory while it is read: as it arrived, as it is read, and as kernels have it."""


def check_room(what: str, nbytes: int) -> None:
    """Check that an adapter of `nbytes` can be read into memory. what: it, for messages. Raises UserError."""
    if nbytes <= ALWAYS:
        return
    available = available_memory()
    if COPIES * nbytes > available:
        raise UserError(
            f"{what}: has {nbytes / 1e9:.1f} GB, whose reading takes {COPIES} times as much, but there are "
            f"{available / 1e9:.1f} GB of memory available; free some, or lower --kv-cache-memory-bytes."
        )
