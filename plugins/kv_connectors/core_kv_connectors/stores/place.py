"""Where a store is, and the secret of the engines that use it, as the user writes them.

Owns: reading both. Never does: dial. Called by: the manifests of the connectors to stores.
"""

from __future__ import annotations

from core.api.errors import ConfigError
from core_kv_connectors.peers.connector import address_of, require_loopback
from core_kv_connectors.tiers.shared_files import read_key

Address = tuple[str, int]


def place_of(written: str, said: str, scheme: str = "") -> Address:
    """Read HOST:PORT, after a scheme if there is one. said: what names it, for messages. Raises ConfigError."""
    if not written.startswith(scheme):
        raise ConfigError([f"{said} {written}: expected {scheme}HOST:PORT; no other protocol is spoken."])
    return address_of(written.removeprefix(scheme).removesuffix("/"), said)


def secret_of(key_file: str | None, name: str, key: str, address: Address) -> bytes:
    """Return the secret in a key file; without one a store must be on this machine. Raises ConfigError.

    name: of the connector. key: its argument that names the address.
    """
    argument = f"--kv-connectors-config.{name}"
    if key_file is None:
        require_loopback(f"{argument}.{key}", address, f"{argument}.key_file")
        return b""
    return read_key(key_file, name)
