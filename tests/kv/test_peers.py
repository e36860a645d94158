"""The KV connector `tcp`: engines take each other's pages, and whatever the network or a peer does costs hits alone."""

import random
import socket
import threading
import time

import pytest

from core.api.errors import ConfigError
from core_kit.fixtures.kv_context import config_of
from core_kv_connectors.peers import peer as peer_module
from core_kv_connectors.peers.connector import Peers
from core_kv_connectors.peers.handshake import Agreement, dial
from core_kv_connectors.peers.messages import MAGIC, Found, Get, Hello, Names, PeerError, receive, send
from core_kv_connectors.peers.offer import MAX_CHANGES, Offer, name_of
from tests.kv.between import Between
from tests.kv.tier_fakes import OTHER_PRINT, PAGE_BYTES, PRINT, Engine, key, page

PROMPTS = [range(start, start + 29) for start in (0, 100, 200)]
NUM_PAGES = 7
PATIENCE_S = 20.0


def until(holds):
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def open_peers(tmp_path):
    """Opens connectors that are closed at the end; `listen` is a free port unless it is None."""
    opened = []

    def make(*asks, listen="127.0.0.1:0", fingerprint=PRINT, key_file=None, capacity=1 << 20, page_bytes=PAGE_BYTES):
        options = {"capacity": capacity, "key_file": key_file and str(key_file)}
        if listen is not None and listen.endswith(":0"):
            listen = f"127.0.0.1:{free_port()}"
        peers = [asked if isinstance(asked, str) else address(asked) for asked in asks]
        opened.append(
            Peers(config_of(tmp_path), lambda: fingerprint, page_bytes, listen=listen, peers=peers, **options)
        )
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def address(connector):
    host, port = connector.disk.listener.address
    return f"{host}:{port}"


@pytest.fixture
def new_key(tmp_path):
    def make(name, text="k" * 40):
        path = tmp_path / name
        path.write_text(text)
        path.chmod(0o600)
        return path

    return make


def offering(connector):
    """Have an engine's prompts evict one another, so that it offers the pages of the first one."""
    engine = Engine(connector)
    for tokens in PROMPTS:
        engine.run(tokens)
    assert len(connector.disk.offer) >= NUM_PAGES
    return engine


def hits(connector, one=None):
    """Tokens of the first prompt that a new engine takes from others, once each peer has told all that `one` offers."""
    until(lambda: one is None or all(len(peer) == len(one.disk.offer) for peer in connector.disk.peers))
    return Engine(connector).run(PROMPTS[0])


def is_hung_up_on(connection, said):
    """Whether the other end answers some bytes by hanging up."""
    connection.settimeout(PATIENCE_S)
    try:
        connection.sendall(said)
        connection.shutdown(socket.SHUT_WR)
        return connection.recv(4096) == b""
    except OSError as error:
        return not isinstance(error, TimeoutError)


def test_an_engine_uses_what_another_has_computed(open_peers):
    one = open_peers()
    offering(one)
    other = open_peers(one, listen=None)
    assert hits(other, one) == 28
    until(lambda: one.disk.listener.num_sent == NUM_PAGES)


def test_what_is_offered_later_is_told_and_what_is_dropped_too(open_peers):
    one = open_peers()
    other = open_peers(one)
    (peer,) = other.disk.peers
    one.disk.write(0, key(1), page(1))
    until(lambda: other.disk.may_have(0, key(1)))
    assert (other.disk.read(0, key(1)) == page(1)).all()
    one.disk.clear()
    until(lambda: not len(peer))
    assert other.disk.read(0, key(1)) is None


def test_each_takes_from_the_other(open_peers):
    port = free_port()
    one = open_peers(f"127.0.0.1:{port}")
    other = open_peers(one, listen=f"127.0.0.1:{port}")
    offering(one)
    assert hits(other, one) == 28
    other.disk.write(0, key(5), page(5))
    until(lambda: one.disk.may_have(0, key(5)))
    assert (one.disk.read(0, key(5)) == page(5)).all()


def test_pages_are_asked_for_ahead(open_peers):
    one = open_peers()
    offering(one)
    asked = []
    between = Between(one.disk.listener.address)
    other = open_peers(between.address, listen=None)
    between.pass_on = lambda data: (asked.append(len(other.disk.peers[0]._asked)), data)[1]
    assert hits(other, one) == 28
    assert max(asked) > NUM_PAGES // 2, "a long way costs its delay once"


@pytest.mark.parametrize(
    ("ours", "theirs", "found"), [("k" * 40, "k" * 40, 28), ("k" * 40, "l" * 40, 0), ("k" * 40, None, 0)]
)
def test_a_key_is_proved_by_both(open_peers, new_key, caplog, ours, theirs, found):
    one = open_peers(key_file=new_key("ours", ours))
    offering(one)
    other = open_peers(one, listen=None, key_file=theirs and new_key("theirs", theirs))
    if not found:
        until(lambda: "another key file, or none" in caplog.text)
    assert hits(other, one if found else None) == found
    if not found:
        assert one.disk.listener.num_sent == 0


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"fingerprint": OTHER_PRINT}, f"fingerprint {PRINT} instead of {OTHER_PRINT}"),
        ({"page_bytes": 64}, f"pages of {PAGE_BYTES} bytes instead of 64"),
    ],
)
def test_engines_that_differ_say_in_what(open_peers, caplog, other, sentence):
    one = open_peers()
    offering(one)
    asking = open_peers(one, listen=None, **other)
    until(lambda: sentence in caplog.text)
    assert not asking.disk.may_have(0, key(1))


@pytest.mark.parametrize("position", [60, 200, 400, 700])
def test_an_altered_page_is_computed(open_peers, caplog, position):
    """Wherever a bit falls over behind the handshake: the engine checks that each block has the bytes of its tokens."""
    one = open_peers()
    offering(one)
    passed = [0]

    def alter(data):
        begin, passed[0] = passed[0], passed[0] + len(data)
        if not len(data) > 20 or not other.disk.peers[0]._asked:
            passed[0] = begin
            return data
        changed = bytearray(data)
        if begin <= position < begin + len(data):
            changed[position - begin] ^= 1
        return bytes(changed)

    between = Between(one.disk.listener.address)
    other = open_peers(between.address, listen=None)
    between.pass_on = alter
    assert hits(other, one) < 28
    assert "is computed here instead" in caplog.text


def test_a_peer_that_is_cut_off_in_the_middle_costs_the_rest_of_the_prefix(open_peers):
    one = open_peers()
    offering(one)
    count = [0]

    def cut(data):
        count[0] += len(data) if other.disk.peers[0]._asked else 0
        if count[0] > 3 * PAGE_BYTES:
            between.cut()
        return data

    between = Between(one.disk.listener.address)
    other = open_peers(between.address, listen=None)
    between.pass_on = cut
    assert hits(other, one) <= 28
    until(lambda: not len(other.disk.peers[0]))
    assert Engine(other).run(PROMPTS[1]) == 0, "nobody waits for it"


def test_a_peer_that_stalls_is_not_waited_for(open_peers, monkeypatch):
    monkeypatch.setattr(peer_module, "PAGE_S", 0.1)
    one = open_peers()
    offering(one)
    go = threading.Event()
    between = Between(one.disk.listener.address)
    other = open_peers(between.address, listen=None)
    until(lambda: len(other.disk.peers[0]) >= NUM_PAGES)
    between.pass_on = lambda data: (go.wait(PATIENCE_S), data)[1]  # from here on every answer is late
    assert hits(other, one) == 0
    go.set()


def test_a_peer_that_fails_three_times_is_left_alone(open_peers, caplog):
    one = open_peers()
    offering(one)
    between = Between(one.disk.listener.address)
    other = open_peers(between.address, listen=None)
    between.pass_on = lambda data: b"\0" * len(data) if other.disk.peers[0]._asked else data
    until(lambda: len(other.disk.peers[0]) >= NUM_PAGES)
    for _ in range(3):
        assert Engine(other).run(PROMPTS[0]) == 0
    assert other.disk.peers[0].rest.remaining > 0
    assert caplog.text.count("is computed here instead") == 1
    third = open_peers(one, between.address, listen=None)
    assert hits(third, one) == 28, "others are asked meanwhile"


def test_the_second_engine_is_asked_for_what_the_first_has_dropped(open_peers):
    one, two = open_peers(), open_peers()
    offering(one)
    offering(two)
    other = open_peers(one, two, listen=None)
    until(lambda: all(len(peer) >= NUM_PAGES for peer in other.disk.peers))
    one.disk.offer._pages.clear()  # gone, and nobody was told yet
    assert hits(other) == 28


def test_a_page_with_wrong_values_is_not_taken_again(open_peers):
    one = open_peers()
    one.disk.write(0, key(1), page(1))
    other = open_peers(one)
    until(lambda: other.disk.may_have(0, key(1)))
    other.discard(0, key(1))
    assert not other.disk.may_have(0, key(1)) and other.disk.read(0, key(1)) is None
    other.disk.write(0, key(1), page(1))
    assert (other.get(0, key(1)) == page(1)).all()


def test_strangers_learn_nothing_and_cost_their_own_connection(open_peers, new_key):
    one = open_peers(key_file=new_key("key"))
    offering(one)
    noise = random.Random(7)
    place = one.disk.listener.address
    words = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 64,
        (1 << 31).to_bytes(4, "little"),
        b"\0" * 4,
        noise.randbytes(4096),
    ]
    for said in words:
        with socket.create_connection(place) as connection:
            assert is_hung_up_on(connection, said)
    with socket.create_connection(place) as connection:
        send(connection, Hello(MAGIC, b"n" * 32, "everything"))
        assert connection.recv(4096) == b""
    with socket.create_connection(place) as connection, pytest.raises(PeerError, match="another key file"):
        dial(connection, Agreement(b"", PRINT, PAGE_BYTES), "pages")
    other = open_peers(one, listen=None, key_file=new_key("key"))
    assert hits(other, one) == 28


def test_a_stranger_cannot_stay_a_byte_at_a_time(open_peers, monkeypatch):
    monkeypatch.setattr("core_kv_connectors.peers.listener.AGREE_S", 0.1)
    one = open_peers()
    with socket.create_connection(one.disk.listener.address) as connection, pytest.raises(OSError):
        connection.send(b"\xff\x0f\0\0")  # a message of 4,095 bytes
        for _ in range(4095):
            connection.send(b"\0")
            time.sleep(0.01)
    until(lambda: not one.disk.listener._connections)


def test_a_peer_with_the_key_and_hostile_bytes_costs_its_own_connection(open_peers):
    one = open_peers()
    offering(one)
    for said in (b"\xff" * 64, b"\x05\0\0\0\x92\x04\xa0\xa0\xa0", (1 << 30).to_bytes(4, "little")):
        with socket.create_connection(one.disk.listener.address) as connection:
            dial(connection, Agreement(b"", PRINT, PAGE_BYTES), "pages")
            assert is_hung_up_on(connection, said)
    with socket.create_connection(one.disk.listener.address) as connection:
        dial(connection, Agreement(b"", PRINT, PAGE_BYTES), "pages")
        send(connection, Get(b"no such page"))
        assert receive(connection, Found) == Found(b"no such page")
    other = open_peers(one, listen=None)
    assert hits(other, one) == 28


def test_a_peer_is_followed_again_after_its_end(open_peers, tmp_path):
    port = free_port()
    one = open_peers(listen=f"127.0.0.1:{port}")
    offering(one)
    other = open_peers(one, listen=None)
    assert hits(other, one) == 28
    one.close()
    until(lambda: not len(other.disk.peers[0]))
    assert Engine(other).run(PROMPTS[0]) == 0
    next_one = open_peers(listen=f"127.0.0.1:{port}")
    offering(next_one)
    assert hits(other, next_one) == 28


def test_new_weights_share_with_engines_that_have_them_too(open_peers, tmp_path):
    port = free_port()
    one = open_peers(listen=f"127.0.0.1:{port}")
    offering(one)
    other = open_peers(one, listen=None)
    assert hits(other, one) == 28
    one.use_weights(config_of(tmp_path), lambda: OTHER_PRINT)
    until(lambda: not len(other.disk.peers[0]))
    assert Engine(other).run(PROMPTS[0]) == 0, "a page of other weights is never used"
    other.use_weights(config_of(tmp_path), lambda: OTHER_PRINT)
    offering(one)
    assert hits(other, one) == 28


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"listen": "10.0.0.7:14579"}, r"tcp\.listen 10\.0\.0\.7:14579: beyond this machine .*key_file"),
        ({"peers": ("kv.example.org:14579",)}, r"tcp\.peers kv\.example\.org:14579: beyond this machine"),
        ({"listen": "14579"}, r"tcp\.listen 14579: expected HOST:PORT"),
        ({"listen": "localhost:0"}, r"expected HOST:PORT"),
        ({"peers": ("127.0.0.1:1",) * 65}, r"65 engines; expected at most 64"),
        ({}, r"give listen, peers, or both"),
    ],
)
def test_mistakes_are_said(tmp_path, arguments, sentence):
    given = {"listen": None, "peers": (), "capacity": 1 << 20, "key_file": None, **arguments}
    with pytest.raises(ConfigError, match=sentence):
        Peers(config_of(tmp_path), lambda: PRINT, PAGE_BYTES, **given)


def test_a_port_in_use_is_said(open_peers, tmp_path, monkeypatch):
    monkeypatch.setattr("core_kv_connectors.peers.listener.OPEN_PAUSE_S", 0.0)
    one = open_peers()
    with pytest.raises(ConfigError, match=r"tcp\.listen 127\.0\.0\.1:\d+: cannot be listened at"):
        open_peers(listen=address(one))


def test_names_are_told_in_pieces_and_anew_to_those_far_behind():
    offer = Offer(1 << 30)
    for number in range(3):
        offer.put(0, key(number), page(number))
    number, added, removed, is_new = offer.changes(None, 0)
    assert set(added) == {name_of(0, key(number)) for number in range(3)} and (removed, is_new) == ([], True)
    offer.discard(name_of(0, key(1)))
    offer.put(0, key(1), page(1))
    offer.discard(name_of(0, key(2)))
    number, added, removed, is_new = offer.changes(number, 0)
    assert (added, removed, is_new) == ([name_of(0, key(1))], [name_of(0, key(2))], False)
    for _ in range(MAX_CHANGES // 2 + 1):
        offer.put(0, key(7), page(7))
        offer.discard(name_of(0, key(7)))
    _, added, _, is_new = offer.changes(number, 0)
    assert is_new and set(added) == {name_of(0, key(0)), name_of(0, key(1))}
    offer.close()
    assert offer.changes(number, 1.0) is None


def test_offered_pages_stay_below_the_limit(open_peers):
    one = open_peers(capacity=3 * PAGE_BYTES)
    for number in range(9):
        one.disk.write(0, key(number), page(number))
    assert len(one.disk.offer) == 3 and one.disk.offer.num_bytes == 3 * PAGE_BYTES
    assert [one.disk.find(0, key(number)) is not None for number in range(9)] == [False] * 6 + [True] * 3
    one.disk.write(0, key(99), page(1, 4 * PAGE_BYTES))
    assert len(one.disk.offer) == 3


def test_more_names_than_an_engine_may_have_end_the_connection(open_peers, monkeypatch, caplog):
    monkeypatch.setattr(peer_module, "MOST_HELD", 3)
    one = open_peers()
    for number in range(5):
        one.disk.write(0, key(number), page(number))
    other = open_peers(one, listen=None)
    until(lambda: "offers more than 3 pages" in caplog.text)
    assert len(other.disk.peers[0]) <= 5
    with pytest.raises(PeerError, match="no Names"):
        ours, theirs = socket.socketpair()
        send(ours, Get(b"x"))
        receive(theirs, Names)
