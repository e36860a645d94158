"""Ports for the wires of an engine whose hosts learn them at its start.

Owns: their choice. Never does: keep them (another process may take one before they are used, which ends the start).
Called by: ranks that Ray or torchrun start.
"""

from __future__ import annotations

import random
import socket
from typing import Final

from core.api.errors import CoreError

LOWEST: Final = 20_000
HIGHEST: Final = 32_000
"""Below the ports that Linux gives to outgoing connections (32,768 and above)."""
TRIES: Final = 200


def free_ports(address: str, count: int) -> int:
    """Return the first of `count` successive ports that are free at an address of this host. Raises CoreError."""
    family = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][0]
    for _ in range(TRIES):
        first = random.randrange(LOWEST, HIGHEST - count)
        if all(_is_free(family, address, port) for port in range(first, first + count)):
            return first
    raise CoreError(
        f"{address}: no {count} successive ports between {LOWEST} and {HIGHEST} are free; end what listens there, or give "
        "the first of free ones with --master-port."
    )


def _is_free(family: socket.AddressFamily, address: str, port: int) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True
