"""Leased pages that a library moves from memory to memory: what both ends make of it, whatever it does.

`Copies` stands for a library within one process. With `make test-fabrics` the same tests run on the real NIXL and Mooncake.
"""

from __future__ import annotations

import ctypes
import importlib.util
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from core.api.errors import ConfigError
from core_kit.fixtures.kv_context import config_of
from core_kv_connectors.handoff.connector import Handoff
from core_kv_connectors.handoff.fabrics import fabric as fabric_module
from core_kv_connectors.handoff.fabrics import nixl as nixl_module
from core_kv_connectors.handoff.fabrics.fabric import Fabric, FabricTransport
from core_kv_connectors.handoff.fabrics.mooncake import MooncakeFabric, mooncake
from core_kv_connectors.handoff.fabrics.nixl import NixlFabric, nixl
from core_kv_connectors.handoff.fabrics.own_address import own_address
from core_kv_connectors.handoff.roles import Roles
from core_kv_connectors.peers.messages import PeerError
from core_kv_connectors.peers.peer import AHEAD
from tests.kv.test_handoff import begun, ends, place_of
from tests.kv.test_peers import free_port
from tests.kv.tier_fakes import PAGE_BYTES, PRINT, key, page

MANY = 3 * AHEAD + 5
"""Pages: a ring of slots comes round three times."""
BLOCKS = [(0, key(number)) for number in range(MANY)]
LEASED = [(None, group, of, page(number)) for number, (group, of) in enumerate(BLOCKS)]
HAVE = {"nixl": importlib.util.find_spec("nixl_cu12"), "mooncake": importlib.util.find_spec("mooncake")}
OPEN: dict[str, Callable[[], Fabric]] = {
    "nixl": lambda: NixlFabric(["UCX"]),
    "mooncake": lambda: MooncakeFabric("127.0.0.1"),
}
IMPORT = {"nixl": nixl, "mooncake": mooncake}
WHY = "make test-fabrics installs it"


class Copies:
    """A library whose ends are in one process; a read outside of registered memory is refused, as a network would."""

    name = "copies"

    def __init__(self, ends: dict[bytes, tuple[int, int]]) -> None:
        self.place = b""
        self.problem = ""
        self.damages = False
        self._ends = ends

    def register(self, address: int, num_bytes: int) -> None:
        self.place = b"end %d" % len(self._ends)
        self._ends[self.place] = (address, num_bytes)

    def read(self, place: bytes, source: int, target: int, num_bytes: int, limit_s: float) -> None:
        begin, length = self._ends[place]
        if self.problem or not begin <= source <= begin + length - num_bytes:
            raise PeerError(self.problem or "the memory is not registered")
        ctypes.memmove(target, source, num_bytes)
        if self.damages:
            ctypes.memset(target, 7, 1)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Handoff]]:
    """Opens the connectors of engines; they are closed at the end."""
    opened: list[Handoff] = []

    def engine(fabric: Fabric | None, *asks: str) -> Handoff:
        role = "kv_consumer" if asks else "kv_producer"
        listen = None if asks else f"127.0.0.1:{free_port()}"
        roles = Roles.read(role, listen, asks, lease_s=30.0, engine_id="P", has_key=False)
        sizes: dict[str, Any] = {"secret": b"", "capacity": 1 << 24, "buffer": 1 << 24}
        moves = None if fabric is None else lambda page_bytes: FabricTransport(fabric, page_bytes)
        opened.append(Handoff(config_of(tmp_path), lambda: PRINT, PAGE_BYTES, roles=roles, transport=moves, **sizes))
        return opened[-1]

    yield engine
    for one in opened:
        one.close(0.0)


Pair = tuple[Handoff, Handoff, Any]


@pytest.fixture(
    params=["copies", *(pytest.param(name, marks=pytest.mark.skipif(not HAVE[name], reason=WHY)) for name in OPEN)]
)
def pair(request: pytest.FixtureRequest, make: Callable[..., Handoff]) -> Pair:
    """A producer, a consumer, and the consumer's fabric."""
    known: dict[bytes, tuple[int, int]] = {}
    here, there = (Copies(known) if request.param == "copies" else OPEN[request.param]() for _ in range(2))
    one = make(here)
    return one, make(there, place_of(one.roles.listen)), there


def received(consumer: Handoff, ticket: str, name: str = "r") -> int:
    """How many pages a request gets, all of them right."""
    claim = begun(consumer, ticket, name=name)
    claim.know(lambda: BLOCKS)
    claim.want(claim.offered.result(20))
    claim.done.result(20)
    consumer.collect(name)
    found = [consumer.get(*block) for block in BLOCKS]
    assert all(got is None or (got == page(number)).all() for number, got in enumerate(found))
    consumer.end_claim(name)
    return sum(got is not None for got in found)


def lease(producer: Handoff) -> str:
    ticket = producer.lease(LEASED, BLOCKS[-1][1].digest, MANY, "t")
    assert ticket is not None
    return ticket


def test_pages_come_through_registered_memory(pair: Pair) -> None:
    one, other, _ = pair
    for _ in range(3):
        assert received(other, lease(one)) == MANY
    ends(one, other)
    counts = one.report_counts() | other.report_counts()
    assert counts["lease.pages_sent"] == counts["claim.pages_received"] == 3 * MANY
    assert not counts["lease.unequal"] and not counts.get("claim.pages_bad", 0)


def test_several_requests_at_once_have_slots_of_their_own(pair: Pair) -> None:
    one, other, _ = pair
    tickets = [lease(one) for _ in range(8)]
    claims = {f"r{number}": begun(other, ticket, name=f"r{number}") for number, ticket in enumerate(tickets)}
    for claim in claims.values():
        claim.know(lambda: BLOCKS)
        claim.want(claim.offered.result(20))
    for name, claim in claims.items():
        claim.done.result(20)
        assert len(claim.pages) == MANY
        assert all((got == page(BLOCKS.index((0, of)))).all() for of, got in claim.pages.values())
        other.end_claim(name)
    ends(one, other)


def test_a_library_that_fails_costs_hits_alone(make: Callable[..., Handoff]) -> None:
    known: dict[bytes, tuple[int, int]] = {}
    there = Copies(known)
    one = make(Copies(known))
    other = make(there, place_of(one.roles.listen))
    there.problem = "the network is gone"
    assert received(other, lease(one)) == 0
    there.problem, there.damages = "", True
    assert received(other, lease(one)) == 0
    assert other.report_counts()["claim.pages_bad"] == 1, "checksums are verified behind every library"
    there.damages = False
    assert received(other, lease(one)) == MANY
    ends(one, other)


class Late(Copies):
    """A library that gives one read up, and writes its bytes while the next read goes on."""

    def __init__(self, ends: dict[bytes, tuple[int, int]]) -> None:
        super().__init__(ends)
        self.num_late = 0
        self._targets: list[int] = []

    def read(self, place: bytes, source: int, target: int, num_bytes: int, limit_s: float) -> None:
        if self.num_late:
            self.num_late -= 1
            self._targets.append(target)
            raise PeerError("it has not read a page in time")
        super().read(place, source, target, num_bytes, limit_s)
        while self._targets:
            ctypes.memset(self._targets.pop(), 255, num_bytes)


def test_what_a_library_writes_late_harms_no_other_claim(make: Callable[..., Handoff]) -> None:
    known: dict[bytes, tuple[int, int]] = {}
    there = Late(known)
    one = make(Copies(known))
    other = make(there, place_of(one.roles.listen))
    there.num_late = 1
    assert received(other, lease(one)) == 0
    assert received(other, lease(one)) == MANY, "it has another ring than the read that was given up"
    assert not other.report_counts()["claim.pages_bad"]
    ends(one, other)
    transport = other._transport
    assert isinstance(transport, FabricTransport)
    assert len(transport._free) == fabric_module.MOST_RINGS, "no memory is lost"


class Agent:
    """NIXL's agent as far as reads need it. late: addresses of the other end from which nothing comes until `comes` is set."""

    def __init__(self, name: str, config: Any) -> None:
        self.known: list[bytes] = []
        self.removed: list[str] = []
        self.late: set[int] = set()
        self.comes, self.asked = threading.Event(), threading.Event()

    def add_remote_agent(self, place: bytes) -> bytes:
        self.known.append(place)
        return b"agent %d" % len(self.known)

    def remove_remote_agent(self, name: str) -> None:
        self.removed.append(name)

    def get_xfer_descs(self, rows: list[tuple[int, int, int]], kind: str) -> int:
        return rows[0][0]

    def initialize_xfer(self, kind: str, here: int, there: int, peer: str, note: bytes) -> int:
        return there

    def transfer(self, handle: int) -> str:
        return "PROC" if handle in self.late else "DONE"

    def check_xfer_state(self, handle: int) -> str:
        self.asked.set()
        return "DONE" if self.comes.is_set() else "PROC"

    def release_xfer_handle(self, handle: int) -> None:
        pass


def test_a_late_read_ends_no_other_of_the_same_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    api = SimpleNamespace(
        nixl_agent_config=lambda **options: options,
        nixl_thread_sync_t=SimpleNamespace(NIXL_THREAD_SYNC_STRICT=1),
        nixl_agent=Agent,
    )
    monkeypatch.setattr(nixl_module, "nixl", lambda: api)
    fabric = NixlFabric(["UCX"])
    agent = fabric._agent
    agent.late = {1, 2}
    slow = threading.Thread(target=fabric.read, args=(b"P", 1, 0, 8, 60.0))
    slow.start()
    assert agent.asked.wait(20)
    with pytest.raises(PeerError, match="has not read a page within"):
        fabric.read(b"P", 2, 0, 8, 0.0)
    assert agent.known == [b"P"] and not agent.removed, "another read goes on"
    agent.comes.set()
    slow.join(20)
    assert agent.removed == ["agent 1"]
    fabric.read(b"P", 3, 0, 8, 1.0)
    assert agent.known == [b"P", b"P"] and not fabric._num_reads and not fabric._failed


def test_two_ways_do_not_fit(make: Callable[..., Handoff], caplog: pytest.LogCaptureFixture) -> None:
    one = make(Copies({}))
    other = make(None, place_of(one.roles.listen))
    ticket = lease(one)
    claim = begun(other, ticket)
    claim.done.result(20)
    assert "the transport copies instead of tcp" in claim.problem
    other.end_claim("r")


def test_without_a_free_slot_a_prompt_is_computed(
    make: Callable[..., Handoff], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fabric_module, "RING_S", 0.01)
    known: dict[bytes, tuple[int, int]] = {}
    one = make(Copies(known))
    other = make(Copies(known), place_of(one.roles.listen))
    transport = one._transport
    assert isinstance(transport, FabricTransport)
    taken = [transport._take(0.0) for _ in range(fabric_module.MOST_RINGS)]
    assert received(other, lease(one)) == 0
    assert other.report_counts()["claim.pages_missing"] == MANY, "what does not come is counted"
    for ring in taken:
        transport._give_back(ring)
    assert received(other, lease(one)) == MANY


def test_slots_are_not_shared_however_connections_end(pair: Pair) -> None:
    """Claims that are dropped in the middle of pages, beside others that go on."""
    one, other, _ = pair
    chance = random.Random(4)

    def run(number: int) -> None:
        claim = begun(other, lease(one), name=f"r{number}")
        claim.know(lambda: BLOCKS)
        claim.want(claim.offered.result(20))
        if chance.random() < 0.5:
            other.end_claim(f"r{number}")
        claim.done.result(20)
        assert all((got == page(BLOCKS.index((0, of)))).all() for of, got in claim.pages.values())
        other.end_claim(f"r{number}")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    ends(one, other)
    assert not other.report_counts().get("claim.pages_bad", 0)


@pytest.mark.parametrize("name", OPEN)
def test_without_the_library_the_start_says_how_to_get_it(name: str) -> None:
    if HAVE[name]:
        pytest.skip("the library is here")
    with pytest.raises(ConfigError, match=rf"core-engine-kv-connectors\[{name}\]"):
        IMPORT[name]()


def test_the_own_address_is_that_of_the_route_to_a_peer() -> None:
    assert own_address("10.0.0.7:1", ["127.0.0.1:2"]) == "10.0.0.7"
    assert own_address(None, ["127.0.0.1:2"]) == own_address(None, []) == "127.0.0.1"
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        own_address(None, ["nowhere"])
