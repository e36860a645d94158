"""The meeting of ranks that a launcher has started: they find each other in the launcher's store.

Owns: `meet`, after which the ranks are nodes as with `--nnodes`. Never does: start a process, or send a tensor.
Called by: `core serve` and `LLM` with `--distributed-executor-backend external_launcher`.

The store is that of torch.distributed at MASTER_ADDR and MASTER_PORT, as torchrun keeps it. Rank 0 leaves address, ports and
a new secret there, so whoever reaches the store can read them, as with everything else that torch's ranks leave in it.
"""

from __future__ import annotations

import datetime
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from core.api.config import EngineConfig
from core.api.errors import CoreError
from core_distributed.arguments import RanksArguments
from core_distributed.hosts.free_ports import free_ports
from core_distributed.hosts.made_key import MadeKey
from core_distributed.hosts.sockets import own_address
from core_distributed.layout import Layout, num_wires
from core_distributed.rank_config import rank_config
from core_platforms.cpu.processors import usable_processors

if TYPE_CHECKING:
    from torch.distributed import TCPStore

KEY: Final = "executor.mp"
"""Where the configuration has the executor's arguments."""
AGENT_STORE: Final = "TORCHELASTIC_USE_AGENT_STORE"
"""Set by torchrun to `True` where its own process keeps the store; otherwise rank 0 does."""
RESTARTS: Final = "TORCHELASTIC_RESTART_COUNT"
"""How often torchrun has started the ranks again; its store still has what earlier ones left."""


BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


class Place(msgspec.Struct, frozen=True):
    """What rank 0 leaves for the others. port: of the first host's watch; wires follow, then `answers`."""

    address: str
    port: int
    answers: int
    secret: bytes


class Launched:
    """One rank after the meeting. config: of the engine, with address, ports and key. number, size: of this rank, and of all.

    answers: port at which rank 0 hands on what its engine answers. limit_s: how long ranks wait for each other.
    store: where they have met.
    """

    def __init__(self, config: EngineConfig, number: int, place: Place, key: MadeKey, store: TCPStore) -> None:
        arguments = arguments_of(config)
        own: dict[str, Any] = dict(config.plugins.arguments[KEY])
        own |= {"address": place.address, "port": place.port, "key_file": key.path, "launched": False}
        plugins = msgspec.structs.replace(config.plugins, arguments={**config.plugins.arguments, KEY: own})
        self.config = msgspec.structs.replace(config, plugins=plugins)
        self.arguments = arguments_of(self.config)
        self.number = number
        self.size = arguments.nodes
        self.answers = place.answers
        self.limit_s = arguments.join_seconds
        self.store = store
        self._key = key

    def close(self) -> None:
        """Forget the key."""
        self._key.close()


def arguments_of(config: EngineConfig) -> RanksArguments:
    """Return the executor's arguments."""
    return msgspec.convert(config.plugins.arguments.get(KEY) or {}, RanksArguments)


def meet(config: EngineConfig, number: int) -> Launched:
    """Wait until all ranks are here, and let them know each other. number: of this rank. Raises CoreError."""
    from torch.distributed import DistError

    arguments = arguments_of(config)
    limit = datetime.timedelta(seconds=arguments.join_seconds)
    where = f"{arguments.address}:{arguments.port}"
    try:
        store = _store(arguments, number, limit)
        # The ranks may meet again, for the next engine of the same script.
        run = f"core/{os.environ.get(RESTARTS, '0')}"
        name = f"{run}/{store.add(f'{run}/meetings/{number}', 1)}"
        place, key = _leave(store, name, arguments) if number == 0 else _take(store, name, arguments, limit)
        if number == 0:
            store.wait([f"{name}/met"], limit)
        config = _share_of(store, name, config, number)
    except DistError as error:
        raise CoreError(
            f"The {arguments.nodes} ranks have not met in the store at {where} within {arguments.join_seconds:g} s: is every "
            f"one of them started, with the same MASTER_ADDR and MASTER_PORT? torch says: {_first_line(error)}"
        ) from error
    return Launched(config, number, place, key, store)


def _share_of(store: TCPStore, name: str, config: EngineConfig, number: int) -> EngineConfig:
    """Return a rank's configuration: its share of the threads and of the cache of its host.

    Ranks that a launcher has bound to other processors share none of these.
    """
    size = arguments_of(config).nodes
    store.set(f"{name}/host/{number}", _home())
    store.wait([f"{name}/host/{other}" for other in range(size)])
    homes = [store.get(f"{name}/host/{other}").decode() for other in range(size)]
    neighbours = [other for other in range(size) if homes[other] == homes[number]]
    if store.add(f"{name}/shared", 1) == size:
        store.set(f"{name}/done", b"1")
    if number == 0:  # it may keep the store
        store.wait([f"{name}/done"])
    return rank_config(config, neighbours.index(number), len(neighbours), leads=number == 0)


def _home() -> str:
    """Return a text that processes have in common that may run on the same processors of the same machine."""
    machine = BOOT.read_text(encoding="ascii").strip() if BOOT.exists() else platform.node()
    return f"{machine} {usable_processors()}"


def _store(arguments: RanksArguments, number: int, limit: datetime.timedelta) -> TCPStore:
    """Return the launcher's store; rank 0 keeps it where the launcher does not."""
    from torch.distributed import TCPStore

    keeps = number == 0 and os.environ.get(AGENT_STORE) != str(True)
    return TCPStore(
        arguments.address, arguments.port, is_master=keeps, timeout=limit, wait_for_workers=False, multi_tenant=True
    )


def _leave(store: TCPStore, name: str, arguments: RanksArguments) -> tuple[Place, MadeKey]:
    """Choose address, ports and key, and leave them in the store."""
    layout = Layout(arguments.ranks, arguments.stages, arguments.nodes)
    address = own_address(arguments.address, arguments.port)
    count = 1 + num_wires(layout)
    port = free_ports(address, count + 1)
    key = MadeKey()
    place = Place(address, port, port + count, key.secret)
    store.set(name, msgspec.msgpack.encode(place))
    return place, key


def _take(store: TCPStore, name: str, arguments: RanksArguments, limit: datetime.timedelta) -> tuple[Place, MadeKey]:
    """Read what rank 0 has left. The last rank that has read it tells rank 0, which may keep the store until then."""
    store.wait([name], limit)
    place = msgspec.msgpack.decode(store.get(name), type=Place)
    if store.add(f"{name}/read", 1) == arguments.nodes - 1:
        store.delete_key(name)  # the secret
        store.set(f"{name}/met", b"1")
    return place, MadeKey(place.secret)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
