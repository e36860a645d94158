"""Pages of other engines over TCP, as the KV connector `tcp`.

Owns: `Peers`: whom to offer pages and whom to ask, as the configuration says, and what must not listen without a key. Never
does: keep or send pages. Called by: the manifest of the connector `tcp`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence

from core.api.config import EngineConfig
from core.api.errors import ConfigError
from core_kv_connectors.peers.handshake import Agreement
from core_kv_connectors.peers.tier import Address, PeerTier
from core_kv_connectors.tiers.host import HostTier
from core_kv_connectors.tiers.local import LocalTiers
from core_kv_connectors.tiers.page_memory import NewPage
from core_kv_connectors.tiers.shared_files import read_key
from core_kv_connectors.tiers.slow_tier import SlowTier

ARGUMENT = "--kv-connectors-config.tcp"
MOST_PEERS = 64


class Peers(LocalTiers):
    """Offers this engine's blocks at `listen`, and takes those that `peers` offer.

    listen: HOST:PORT; None: nothing is offered. peers: HOST:PORT of engines to ask, in this order. capacity: limit in bytes on
    the pages that are offered. key_file: with the secret of all engines; None: all of them are on this machine. rate: limit in
    bytes a second on pages, each way; None: no limit.
    fingerprint, page_bytes, new_page: as for `LocalTiers`.

    Raises ConfigError.
    """

    argument = "kv_connectors"
    medium = "TCP"
    places = ("offered", "tcp")

    def __init__(
        self,
        config: EngineConfig,
        fingerprint: Callable[[], str],
        page_bytes: int,
        new_page: NewPage | None = None,
        *,
        listen: str | None,
        peers: Sequence[str],
        capacity: int,
        key_file: str | None,
        rate: int | None = None,
    ) -> None:
        if listen is None and not peers:
            raise ConfigError([f"{ARGUMENT}: neither offers pages nor asks for any; give listen, peers, or both."])
        if len(peers) > MOST_PEERS:
            raise ConfigError([f"{ARGUMENT}.peers: {len(peers)} engines; expected at most {MOST_PEERS}."])
        self._listen = None if listen is None else address_of(listen, f"{ARGUMENT}.listen")
        self._peers = [address_of(peer, f"{ARGUMENT}.peers") for peer in peers]
        self._capacity = capacity
        self._rate = rate
        self._secret = b"" if key_file is None else read_key(key_file, f"{ARGUMENT}.key_file")
        if key_file is None:
            for name, address in [
                (f"{ARGUMENT}.listen", self._listen),
                *((f"{ARGUMENT}.peers", peer) for peer in self._peers),
            ]:
                require_loopback(name, address)
        super().__init__(config, fingerprint, page_bytes, new_page)

    def _open_host(self, config: EngineConfig) -> HostTier | None:
        return None

    def _open_disk(self, config: EngineConfig, fingerprint: Callable[[], str]) -> SlowTier | None:
        if not config.cache.enable_prefix_caching:
            return None
        agreement = Agreement(self._secret, fingerprint(), self._page_bytes)
        return PeerTier(agreement, self._capacity, self._listen, self._peers, self._new_page, self._rate)


def address_of(written: str, said: str) -> Address:
    """Read HOST:PORT or [HOST]:PORT. said: what names it, for messages. Raises ConfigError."""
    host, colon, port = written.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise ConfigError([f"{said} {written}: expected HOST:PORT, such as 10.0.0.7:14579."])
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its name."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def require_loopback(said: str, address: Address | None, key: str = f"{ARGUMENT}.key_file") -> None:
    """Raise ConfigError for an address beyond this machine, which needs a key. said, key: what names them, for messages."""
    if address is not None and not is_loopback(address[0]):
        raise ConfigError(
            [
                f"{said} {address[0]}:{address[1]}: beyond this machine pages need a secret that all engines have; "
                f"give {key} (openssl rand -hex 32 > FILE; chmod 600 FILE)."
            ]
        )
