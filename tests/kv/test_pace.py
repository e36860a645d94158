"""The limit on pages between engines: bytes on a simulated clock, and streams of one peer."""

import random
import socket
import threading

import pytest

from core_kit.fixtures.kv_context import config_of
from core_kv_connectors.handoff import claim as claim_module
from core_kv_connectors.handoff.connector import Handoff
from core_kv_connectors.handoff.roles import Roles
from core_kv_connectors.peers.messages import Found, receive, receive_into, send
from core_kv_connectors.peers.pace import MOST_STREAMS, PIECE_BYTES, Pace
from tests.kv.test_handoff import BLOCKS, PAGES, begun, ends, fetched, leased, place_of
from tests.kv.test_peers import free_port, until
from tests.kv.tier_fakes import PAGE_BYTES, PRINT

RATE = 1000 * PIECE_BYTES


class Clock:
    """Simulated seconds, which pass while somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lock = threading.Lock()

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        with self.lock:
            self.now += seconds


def test_no_span_of_time_has_more_bytes_than_the_limit() -> None:
    rng, clock = random.Random(1), Clock()
    pace = Pace(RATE, clock, clock.wait)
    moved: list[tuple[float, int]] = []
    for _ in range(3000):
        if not rng.randrange(50):
            clock.now += rng.random() / 10  # nothing is asked for, and nothing is saved up
        size = rng.randrange(1, PIECE_BYTES + 1)
        pace.take(size)
        moved.append((clock.now, size))
    for begin in range(0, len(moved), 7):
        total = 0
        for now, size in moved[begin : begin + 500]:
            total += size
            assert total <= RATE * (now - moved[begin][0]) + PIECE_BYTES + 1
    assert moved[-1][0] >= sum(size for _, size in moved[:-1]) / RATE


@pytest.mark.parametrize("end", ["sends", "takes"])
def test_either_end_keeps_to_its_limit(end: str) -> None:
    clock = Clock()
    pace = Pace(RATE, clock, clock.wait)
    page = random.Random(2).randbytes(10 * PIECE_BYTES + 5)
    near, far = socket.socketpair()
    with near, far:
        limited = {"sends": (pace, None), "takes": (None, pace)}[end]
        sender = threading.Thread(
            target=send, args=(near, Found(b"n", b"h"), memoryview(page), limited[0]), daemon=True
        )
        sender.start()
        assert receive(far, Found).name == b"n"
        got = bytearray(len(page))
        receive_into(far, memoryview(got), limited[1])
        sender.join(20)
    assert got == page
    assert clock.now == pytest.approx(10 * PIECE_BYTES / RATE), "the last piece begins when those before it are through"


def engine(tmp_path, *asks, rate=None):  # type: ignore[no-untyped-def]
    """The connector of an engine."""
    role, listen = ("kv_consumer", None) if asks else ("kv_producer", f"127.0.0.1:{free_port()}")
    roles = Roles.read(role, listen, asks, lease_s=30.0, engine_id="P", has_key=False)
    options = {"roles": roles, "secret": b"", "capacity": 1 << 20, "buffer": 1 << 20, "rate": rate}
    return Handoff(config_of(tmp_path), lambda: PRINT, PAGE_BYTES, **options)


def test_leased_pages_keep_to_the_limit(tmp_path) -> None:  # type: ignore[no-untyped-def]
    one, clock = engine(tmp_path, rate=10_000_000), Clock()
    other = engine(tmp_path, place_of(one.roles.listen))
    assert one.sends.rate == 10_000_000
    one.listener._pace = Pace(RATE, clock, clock.wait)
    assert fetched(other, leased(one)) == PAGES
    assert clock.now == pytest.approx((PAGES - 1) * PAGE_BYTES / RATE)
    ends(one, other)
    one.close(0.0)
    other.close(0.0)


def test_a_peer_moves_pages_on_four_connections_at_a_time(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    one = engine(tmp_path)
    other = engine(tmp_path, place_of(one.roles.listen))
    open_now, most, go = [0], [0], threading.Event()
    lock = threading.Lock()
    fetch = claim_module.Claim._fetch

    def counted(self, connection, *more):  # type: ignore[no-untyped-def]
        with lock:
            open_now[0] += 1
            most[0] = max(most[0], open_now[0])
        assert go.wait(20)
        try:
            fetch(self, connection, *more)
        finally:
            with lock:
                open_now[0] -= 1

    monkeypatch.setattr(claim_module.Claim, "_fetch", counted)
    claims = [begun(other, leased(one), name=f"r{number}") for number in range(MOST_STREAMS + 3)]
    for claim in claims:
        claim.know(lambda: BLOCKS)
        claim.offered.result(20)
        claim.want(BLOCKS)
    until(lambda: open_now[0] == MOST_STREAMS)
    go.set()
    for claim in claims:
        claim.done.result(20)
    assert most[0] == MOST_STREAMS and all(len(claim.pages) == PAGES for claim in claims)
    for number in range(len(claims)):
        other.end_claim(f"r{number}")
    ends(one, other)
    one.close(0.0)
    other.close(0.0)
