"""What an engine is in a handoff of KV pages: producer, consumer or both, and the addresses of each.

Owns: `Roles`, and the checks of what the configuration says. Never does: listen or dial. Called by: the manifest of the
connector `tcp`; servers (`roles_of`), which refuse requests that the engine has no role for.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from core.api.config import EngineConfig
from core.api.errors import ConfigError
from core_kv_connectors.peers.connector import MOST_PEERS, address_of, require_loopback
from core_kv_connectors.peers.tier import Address

PRODUCER, CONSUMER, BOTH = "kv_producer", "kv_consumer", "kv_both"
RECOMPUTE, FAIL = "recompute", "fail"
"""What becomes of a request whose pages cannot be loaded: it is computed here, or ends with an error."""
PLACE, PEERS = "--kv-transfer-config.kv_ip", "--kv-peers"
"""Arguments that name addresses, for messages."""
HANDS_ON: Final = ("kv_connector.tcp", "kv_connector.nixl", "kv_connector.mooncake")
"""The connectors that have roles."""
ROLES: Final = (PRODUCER, CONSUMER, BOTH)
ANY_ADDRESS: Final = ("0.0.0.0", "::")  # refused, never listened at


@dataclass(frozen=True, slots=True)
class Roles:
    """The role of one engine.

    listen: where consumers come; None: it is no producer. peers: the only addresses that it dials; empty: it is no consumer.
    lease_s: seconds of a lease without a word. engine_id: its name in answers. load_failure: RECOMPUTE or FAIL.
    """

    listen: Address | None
    peers: tuple[Address, ...]
    lease_s: float
    engine_id: str
    load_failure: str = RECOMPUTE

    @classmethod
    def read(
        cls,
        role: str,
        listen: str | None,
        peers: Sequence[str],
        *,
        lease_s: float,
        engine_id: str | None,
        has_key: bool,
        load_failure: str = RECOMPUTE,
    ) -> Roles:
        """Check what the configuration says. has_key: whether there is a key file. Raises ConfigError."""
        problem = _contradiction(role, listen, peers)
        if role == PRODUCER and load_failure != RECOMPUTE:
            problem = (
                f"kv_load_failure_policy {load_failure}: kv_role {role} loads no pages; leave it out, or give {BOTH}."
            )
        if problem:
            raise ConfigError([problem])
        place = address_of(listen, PLACE) if listen is not None and role != CONSUMER else None
        if place is not None and place[0] in ANY_ADDRESS:
            raise ConfigError([
                f"kv_ip {place[0]}: answers tell it to consumers; give the address at which they reach this engine."
            ])  # fmt: skip
        whom = tuple(address_of(peer, PEERS) for peer in peers)
        if not has_key:
            for said, address in [(PLACE, place), *((PEERS, peer) for peer in whom)]:
                require_loopback(said, address, "--kv-key-file")
        return cls(place, whom, lease_s, engine_id or secrets.token_hex(8), load_failure)


def _contradiction(role: str, listen: str | None, peers: Sequence[str]) -> str:
    """Return what a role lacks, or has and cannot use; empty: nothing."""
    if role not in ROLES:
        return f"kv_role {role}: expected one of {', '.join(ROLES)}."
    if len(peers) > MOST_PEERS:
        return f"--kv-peers: {len(peers)} engines; expected at most {MOST_PEERS}."
    if role != CONSUMER and listen is None:
        return f"kv_role {role}: consumers need an address; give kv_ip and kv_port."
    if role != PRODUCER and not peers:
        return f"kv_role {role}: there is no engine to take pages from; give --kv-peers HOST:PORT."
    if role == PRODUCER and peers:
        return f"--kv-peers {peers[0]}: kv_role {role} takes no pages; leave it out, or give {BOTH}."
    return ""


def roles_of(config: EngineConfig) -> str:
    """Return the role that a configuration gives its engine; empty: none."""
    return str(_own(config).get("role", ""))


def moves_requests(config: EngineConfig) -> bool:
    """Whether the engines of a group hand over running requests with what they have computed."""
    return config.data_parallel_size > 1 and roles_of(config) == BOTH


def of_member(arguments: Mapping[str, Any], rank: int, count: int) -> dict[str, Any]:
    """Return the arguments of a connector with a role for one of the `count` engines of a command, which are of one group.

    Each engine listens at the port that the configuration names plus its number among these, and dials all others: those of
    this command, and the peers that the configuration names, which other commands start.
    """
    host, port = address_of(str(arguments["listen"]), PLACE)
    named = f"[{host}]" if ":" in host else host
    places = [f"{named}:{port + place}" for place in range(count)]
    others = [place for place in places if place != places[rank]]
    own = {**arguments, "listen": places[rank], "peers": [*others, *arguments.get("peers", ())]}
    if own.get("engine_id"):
        own["engine_id"] = f"{own['engine_id']}_dp{rank}"
    return own


def fails_loads(config: EngineConfig) -> bool:
    """Whether a configuration ends requests whose pages cannot be loaded, rather than compute them."""
    return str(_own(config).get("load_failure", "")) == FAIL


def hands_on(name: str, arguments: object) -> bool:
    """Whether these are the arguments of a connector that has a role. name: as in `PluginChoices.arguments`."""
    return name.partition("#")[0] in HANDS_ON and isinstance(arguments, Mapping) and bool(arguments.get("role"))


def _own(config: EngineConfig) -> Mapping[str, Any]:
    """Return the arguments of the connector that has a role; empty: there is none."""
    if config.cache.enable_prefix_caching:
        for name, arguments in config.plugins.arguments.items():
            if hands_on(name, arguments):
                return arguments
    return {}
