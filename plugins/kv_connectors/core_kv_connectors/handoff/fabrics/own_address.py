"""The address at which other engines reach this one.

Owns: `own_address`. Never does: listen, or send anything. Called by: manifests of connectors whose library asks for it.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Final

from core_kv_connectors.handoff.roles import PEERS, PLACE
from core_kv_connectors.peers.connector import address_of

LOOPBACK: Final = "127.0.0.1"


def own_address(listen: str | None, peers: Sequence[str]) -> str:
    """Return the host of `listen`, else the own address on the route to the first peer. Raises ConfigError for bad ones."""
    if listen is not None:
        return address_of(listen, PLACE)[0]
    if not peers:
        return LOOPBACK
    host, port = address_of(peers[0], PEERS)
    for family in (socket.AF_INET, socket.AF_INET6):
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((host, port))  # sends nothing: a datagram socket only looks up its route
            except OSError:
                continue
            return str(probe.getsockname()[0])
    return LOOPBACK
