"""Where a store is, and the secret of the engines that use it, as the user writes them.

Owns: reading both. Never does: dial. Called by: the manifests of the connectors to stores.
"""

from __future__ import annotations

from core.api.errors import ConfigError
from core_kv_connectors.peers.connector import address_of, is_loopback, require_loopback
from core_kv_connectors.tiers.shared_files import read_key

Address = tuple[str, int]


def place_of(written: str, said: str, schemes: tuple[str, ...] = ("",)) -> tuple[Address, str]:
    """Read HOST:PORT after one of the schemes, and return both. said: what names it, for messages. Raises ConfigError."""
    scheme = next((each for each in schemes if written.startswith(each)), None)
    if scheme is None:
        expected = " or ".join(f"{each}HOST:PORT" for each in schemes)
        raise ConfigError([f"{said} {written}: expected {expected}; no other protocol is spoken."])
    return address_of(written.removeprefix(scheme).removesuffix("/"), said), scheme


def require_here(said: str, written: str, address: Address, why: str) -> None:
    """Raise ConfigError for an address that is not of this machine. why: a reason, for the message."""
    if not is_loopback(address[0]):
        raise ConfigError([f"{said} {written}: {why}; expected an address of this machine, such as 127.0.0.1."])


def secret_of(key_file: str | None, name: str, key: str, address: Address) -> bytes:
    """Return the secret in a key file; without one a store must be on this machine. Raises ConfigError.

    name: of the connector. key: its argument that names the address.
    """
    argument = f"--kv-connectors-config.{name}"
    if key_file is None:
        require_loopback(f"{argument}.{key}", address, f"{argument}.key_file")
        return b""
    return read_key(key_file, f"{argument}.key_file")
