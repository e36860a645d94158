"""What a page costs on its way between two engines: calls of the system, and memory."""

import socket
import threading
from collections import Counter

import numpy as np
import pytest

from core_kit.fixtures.kv_context import config_of
from core_kv_connectors.handoff.claim import Source
from core_kv_connectors.handoff.connector import Handoff
from core_kv_connectors.handoff.roles import Roles
from core_kv_connectors.peers.messages import Ask, Found, PeerError, Reader, framed, limit_waits, receive, send
from core_kv_connectors.peers.messages import receive_into as read_page
from core_kv_connectors.tiers.page_memory import ReusedMemory
from tests.kv.test_peers import free_port
from tests.kv.tier_fakes import PRINT, key

LARGE = 1 << 18
COUNT = 64


@pytest.fixture
def ends():
    pair = socket.socketpair()
    for end in pair:
        limit_waits(end, receiving_s=5.0, sending_s=5.0)
    yield pair
    for end in pair:
        end.close()


def test_a_message_and_its_page_are_one_call_and_arrive_whole(ends, monkeypatch):
    one, other = ends
    page = np.random.default_rng(1).integers(0, 256, LARGE, np.uint8)
    calls = counted(monkeypatch)
    sending = threading.Thread(target=send, args=(one, Found(b"n", b"h"), page.data))
    sending.start()
    assert receive(other, Found) == Found(b"n", b"h")
    got = np.empty(LARGE, np.uint8)
    read_page(other, got.data)
    sending.join()
    assert (got == page).all()
    assert calls == {"sendmsg": 1, "recv_into": 3}


@pytest.mark.parametrize("left", [1, 40, LARGE])
def test_what_the_system_does_not_take_at_once_follows(left):
    """A write that is cut anywhere, in the message or in the page."""

    class Cut:
        def __init__(self):
            self.written = b""

        def sendmsg(self, parts):
            self.written += b"".join(bytes(part) for part in parts)[:left]
            return len(self.written)

        def sendall(self, data):
            self.written += bytes(data)

    cut = Cut()
    page = np.arange(100, dtype=np.uint8)
    send(cut, Found(b"name", b"header of a page"), page.data)
    assert cut.written == framed(Found(b"name", b"header of a page")) + page.tobytes()


def test_questions_that_have_come_together_are_read_with_one_call(ends, monkeypatch):
    one, other = ends
    asks = [Ask(bytes([number]) * 24) for number in range(20)]
    data = framed(*asks)
    one.sendall(data[:-3])
    reader = Reader(other, 64)
    calls = counted(monkeypatch)
    assert [reader.receive(Ask) for _ in range(19)] == asks[:19] and calls == {"recv": 1}
    one.sendall(data[-3:] + framed(Ask(bytes(65))))
    assert reader.receive(Ask) == asks[19]
    with pytest.raises(PeerError, match="expected at most 64"):
        reader.receive(Ask)
    one.close()
    with pytest.raises(PeerError, match="has closed"):
        Reader(other, 64).receive(Ask)


def test_an_end_that_says_nothing_is_given_up(ends):
    one, other = ends
    limit_waits(other, receiving_s=0.02, sending_s=0.02)
    one.sendall(framed(Ask())[:3])
    for wait in (lambda: receive(other, Ask), lambda: Reader(other, 64).receive(Ask)):
        with pytest.raises(TimeoutError, match="timed out"):
            wait()
    with pytest.raises(OSError):
        send(other, Found(b"n", b"h"), np.zeros(1 << 24, np.uint8).data)


def counted(monkeypatch):
    """Counts of the calls that move bytes, by any socket from now on."""
    counts = Counter()

    def counting(name):
        whole = getattr(socket.socket, name)

        def call(self, *arguments):
            counts[name] += 1
            return whole(self, *arguments)

        monkeypatch.setattr(socket.socket, name, call, raising=False)

    for name in ("recv", "recv_into", "sendmsg", "send", "sendall"):
        counting(name)
    return counts


def test_a_page_takes_few_calls_on_both_ends_together(tmp_path, monkeypatch):
    """Of each page: one call writes it, one reads it, and two its header; questions come eight at a time."""
    place = f"127.0.0.1:{free_port()}"
    roles = Roles.read("kv_producer", place, (), lease_s=30.0, engine_id=None, has_key=False)
    options = {"secret": b"", "capacity": 1 << 26, "buffer": 1 << 26}
    producer = Handoff(config_of(tmp_path), lambda: PRINT, LARGE, roles=roles, **options)
    asks = Roles.read("kv_consumer", None, (place,), lease_s=30.0, engine_id=None, has_key=False)
    consumer = Handoff(config_of(tmp_path), lambda: PRINT, LARGE, roles=asks, **options)
    pages = [np.full(LARGE, number, np.uint8) for number in range(COUNT)]
    blocks = [(0, key(number)) for number in range(COUNT)]
    leased = [(None, 0, of, page) for (_, of), page in zip(blocks, pages, strict=True)]

    def fetch():
        ticket = producer.lease(leased, blocks[-1][1].digest, COUNT, "")
        calls = counted(monkeypatch)
        consumer.claim("r", Source(*roles.listen, ticket), "")
        claim = consumer.claim_of("r")
        claim.know(lambda: blocks)
        claim.want(claim.offered.result(20))
        claim.done.result(20)
        assert [page.tobytes() for _, page in claim.pages.values()] == [page.tobytes() for page in pages]
        addresses = {page.ctypes.data for _, page in claim.pages.values()}
        consumer.end_claim("r")
        monkeypatch.undo()
        return calls, addresses

    try:
        calls, first = fetch()
        assert sum(calls.values()) <= 4 * COUNT + 64, calls  # those that agree on the pages included
        assert fetch()[1] == first, "the second time no page is written to new memory"
        consumer.drop_memory()
    finally:
        consumer.close(0.0)
        producer.close(0.0)


def test_memory_is_lent_again_only_once_nobody_has_it():
    made = []

    def new_page():
        made.append(0)
        return np.empty(64, np.uint8)

    memory = ReusedMemory(new_page, 64, 4 * 64)
    held = [memory.take() for _ in range(6)]
    assert len(made) == 6 and len(memory) == 4, "two are more than are kept"
    view, raw = held[0][8:16].reshape(2, 4)[1:], held[1].data.cast("B")[3:]
    addresses = {page.ctypes.data for page in held[2:4]}
    held.clear()
    again = [memory.take() for _ in range(2)]
    assert {page.ctypes.data for page in again} == addresses, "of the others there are views"
    assert len(made) == 6
    del view
    raw.release()
    third = memory.take()
    assert len(made) == 6 and third.ctypes.data not in addresses
    memory.drop()
    assert memory.take() is not None and len(made) == 7


def test_pages_of_shared_memory_are_never_lent_twice():
    whole = np.empty(256, np.uint8)
    memory = ReusedMemory(lambda: whole[:64], 64, 256)
    assert memory.take() is not memory.take() and len(memory) == 0
