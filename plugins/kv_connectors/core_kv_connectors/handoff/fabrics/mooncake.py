"""Mooncake's transfer engine as a fabric: pages move over TCP, or over what else the package was built for.

Owns: `MooncakeFabric`: the transfer engine of this engine. Never does: use Mooncake's store, or a metadata server: the two ends
tell each other what they need. Called by: the manifest of the connector `mooncake`. Source: the documentation of
mooncake-transfer-engine 0.3.

A read from an end that has stopped returns after up to a minute; the claim is late by then, and its prompt computed.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

from core.api.errors import ConfigError
from core_kv_connectors.peers.messages import PeerError

MODULE: Final = "mooncake.engine"
PROTOCOL: Final = "tcp"
METADATA: Final = "P2PHANDSHAKE"
"""In place of a metadata server's address."""


def mooncake() -> Any:
    """Import the library. Raises ConfigError where it is not installed or lacks a library of the system."""
    try:
        return importlib.import_module(MODULE)
    except ImportError as error:
        raise ConfigError(
            [
                f"the KV connector mooncake needs Mooncake's transfer engine, which cannot be imported ({error}); install it: "
                "pip install 'core-engine-kv-connectors[mooncake]', and the libraries of the system that it links: "
                "apt install libibverbs1 libnl-3-200 libnl-route-3-200 libnuma1 libcurl4."
            ]
        ) from error


class MooncakeFabric:
    """The transfer engine of one engine. See `Fabric`. host: at which the other ends reach it. Raises ConfigError."""

    name = "mooncake"

    def __init__(self, host: str, protocol: str = PROTOCOL) -> None:
        engine = mooncake().TransferEngine()
        status = engine.initialize(host, METADATA, protocol, "")
        if status:
            raise ConfigError(
                [
                    f"the KV connector mooncake: the transfer engine cannot start at {host} over {protocol} (status {status})."
                ]
            )
        self._engine = engine
        self._host = host
        self.place = b""

    def register(self, address: int, num_bytes: int) -> None:
        """See `Fabric`."""
        status = self._engine.register_memory(address, num_bytes)
        if status:
            raise ConfigError([f"the KV connector mooncake: {num_bytes} bytes cannot be registered (status {status})."])
        self.place = f"{self._host}:{self._engine.get_rpc_port()}".encode()

    def read(self, place: bytes, source: int, target: int, num_bytes: int, limit_s: float) -> None:
        """See `Fabric`; the library has a time limit of its own."""
        status = self._engine.transfer_sync_read(place.decode(errors="replace"), target, source, num_bytes)
        if status:
            raise PeerError(f"Mooncake cannot read its memory (status {status})")
