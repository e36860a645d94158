"""Stores of others: pages are shared through them, and nothing they say is believed.

`LMCacheServer` and `MPServer` stand for LMCache's servers. With `make test-stores` the same tests run on the real ones, and on
Mooncake's store.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from core.api.errors import ConfigError
from core_kit.fixtures.kv_context import config_of, context_of
from core_kv_connectors.manifests import lmcache, mooncake_store
from core_kv_connectors.stores import lmcache as lm
from core_kv_connectors.stores.connector import Stored
from core_kv_connectors.stores.lmcache import LMCacheStore
from core_kv_connectors.stores.lmcache_mp import LMCacheMPStore
from core_kv_connectors.stores.mooncake import MooncakeStore
from core_kv_connectors.stores.store import Store, StoreError
from core_kv_connectors.stores.tier import StoreTier
from tests.kv.lmcache_mp_server import MPServer
from tests.kv.lmcache_server import LMCacheServer
from tests.kv.test_peers import free_port
from tests.kv.tier_fakes import OTHER_PRINT, PAGE_BYTES, PRINT, Engine, key, page

PROMPTS = [range(start, start + 29) for start in (0, 100, 200)]
START_S = 120
LMCACHE_PYTHON = os.environ.get("CORE_TEST_LMCACHE_PYTHON")
"""Interpreter that can import LMCache, which pins packages: `make test-stores` sets it."""
HAS_MOONCAKE = importlib.util.find_spec("mooncake") is not None

Dial = Callable[[], Store]
Open = Callable[..., Stored]


def stand_in() -> Iterator[Dial]:
    server = LMCacheServer()
    yield lambda: LMCacheStore("127.0.0.1", server.port)
    server.close()


def mp_stand_in() -> Iterator[Dial]:
    with MPServer() as server:
        yield lambda: LMCacheMPStore("127.0.0.1", server.port)


def started(port: int, *command: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            lm.socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return process
    raise AssertionError(f"{command} does not listen")


def real_lmcache() -> Iterator[Dial]:
    assert LMCACHE_PYTHON is not None
    port = free_port()
    process = started(port, LMCACHE_PYTHON, "-m", "lmcache.v1.server", "127.0.0.1", str(port))
    yield lambda: LMCacheStore("127.0.0.1", port)
    process.kill()
    process.wait()


def real_mp_lmcache() -> Iterator[Dial]:
    assert LMCACHE_PYTHON is not None
    port, http = free_port(), free_port()
    options = f"--host 127.0.0.1 --port {port} --http-host 127.0.0.1 --http-port {http} --shm-name core-test-{port}"
    options += " --l1-size-gb 0.05 --eviction-policy LRU --no-l1-use-lazy --supported-transfer-mode engine_driven"
    process = started(
        port, LMCACHE_PYTHON, "-m", "lmcache.cli.main", "server", *options.split(), "--disable-observability"
    )
    yield lambda: LMCacheMPStore("127.0.0.1", port)
    process.terminate()
    process.wait()


def real_mooncake() -> Iterator[Dial]:
    port, metrics = free_port(), free_port()
    master = str(Path(str(importlib.util.find_spec("mooncake").submodule_search_locations[0])) / "mooncake_master")
    flags = (f"--rpc_port={port}", "--rpc_address=127.0.0.1", f"--metrics_port={metrics}", "--metrics_host=127.0.0.1")
    process = started(port, master, *flags)
    yield lambda: MooncakeStore(f"127.0.0.1:{port}", "127.0.0.1", 64 << 20)
    process.kill()
    process.wait()


REAL = [
    *(
        pytest.param(one, marks=pytest.mark.skipif(LMCACHE_PYTHON is None, reason="make test-stores installs it"))
        for one in (real_lmcache, real_mp_lmcache)
    ),
    pytest.param(real_mooncake, marks=pytest.mark.skipif(not HAS_MOONCAKE, reason="make test-stores installs it")),
]


@pytest.fixture(params=[stand_in, mp_stand_in, *REAL])
def dial(request: pytest.FixtureRequest) -> Iterator[Dial]:
    """How to reach a store that is empty."""
    yield from request.param()


@pytest.fixture
def server() -> Iterator[LMCacheServer]:
    one = LMCacheServer()
    yield one
    one.close()


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Open]:
    """Opens connectors, which are closed at the end."""
    opened: list[Stored] = []

    def make(dial: Dial, fingerprint: str = PRINT, secret: bytes = b"") -> Stored:
        made = Stored(config_of(tmp_path), lambda: fingerprint, PAGE_BYTES, name="lmcache", dial=dial, secret=secret)
        opened.append(made)
        return made

    yield make
    for one in opened:
        one.close(1.0)


def dialled(server: LMCacheServer, limit_s: float = 2.0) -> Dial:
    return lambda: LMCacheStore("127.0.0.1", server.port, limit_s)


def tier_of(connector: Stored) -> StoreTier:
    assert isinstance(connector.disk, StoreTier)
    return connector.disk


def fill(connector: Stored) -> None:
    """Have prompts evict one another, until the blocks of the first ones are stored."""
    engine = Engine(connector)
    for prompt in [*PROMPTS, range(300, 329)]:
        engine.run(prompt)
    assert connector.disk is not None and connector.disk.flush(10.0)


def hits(connector: Stored, prompts: list[range] = PROMPTS) -> int:
    """Tokens that a new engine finds; it verifies the bytes of each block."""
    engine = Engine(connector)
    return sum(engine.run(prompt) for prompt in prompts)


def test_engines_share_pages_of_their_weights_alone(dial: Dial, open_store: Open) -> None:
    one = open_store(dial)
    fill(one)
    assert hits(open_store(dial)) == 28 * len(PROMPTS)
    assert hits(open_store(dial, OTHER_PRINT)) == 0
    assert hits(open_store(dial, secret=bytes(32))) == 0, "a secret changes names"
    tier_of(one).clear()
    assert hits(one) == 0, "after a reset of its cache an engine uses no earlier page"


def test_a_page_is_of_its_tokens(dial: Dial, open_store: Open) -> None:
    """An object under a wrong name, as a store may return that confuses names."""
    tier = tier_of(open_store(dial))
    tier.write(0, key(1), page(1))
    assert tier.flush(10.0)
    store = dial()
    store.prepare(memoryview(bytearray(tier._buffer.nbytes)))
    for group, other in ((0, key(2)), (1, key(1))):
        wrong = tier._name_of(group, other)
        store.write(
            wrong, tier._parts_of(type("Pending", (), {"group": 0, "key": key(1), "page": page(1)})), replaces=False
        )
        assert tier.contains(group, other) and tier.read(group, other) is None
    assert tier.missing(key(2)) == "page_damaged"
    assert (tier.read(0, key(1)) == page(1)).all()
    tier.write(0, key(2), page(2))
    assert tier.flush(10.0)
    assert (tier.read(0, key(2)) == page(2)).all(), "what was computed here takes the place of the wrong one"
    store.close()


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "a byte of the page": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "a byte of the header": lambda content: content[:20] + bytes([content[20] ^ 1]) + content[21:],
    "shorter": lambda content: content[:-1],
    "longer": lambda content: content + b"0",
    "empty": lambda content: b"",
    "a header of its own": lambda content: b"\xff\xff\xff\xff" + content[4:],
    "larger than any page": lambda content: content + bytes(1 << 20),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_a_store_changes_is_computed(kind: str, server: LMCacheServer, open_store: Open) -> None:
    fill(open_store(dialled(server)))
    server.answer = DAMAGE[kind]
    damaged = open_store(dialled(server))
    assert hits(damaged) == 0
    server.answer = lambda content: content
    assert hits(open_store(dialled(server))) == 28 * len(PROMPTS)


def flipped(content: bytes) -> bytes:
    return bytes([content[0] ^ 1]) + content[1:]


@pytest.mark.parametrize("where", ["its length", "its header", "its end"])
def test_what_lies_otherwise_in_the_memory_of_an_mp_server_is_computed(where: str, open_store: Open) -> None:
    with MPServer() as server:
        connector = open_store(lambda: LMCacheMPStore("127.0.0.1", server.port, 0.2))
        fill(connector)
        assert server.num_locks == 0, "a look-up unlocks what it found"
        with server.memory.open("r+b") as file:
            for offset, _ in server.places.values():
                file.seek(offset)
                length = 8 + int.from_bytes(file.read(8), "little")
                file.seek(offset + {"its length": 4, "its header": 20, "its end": length - 1}[where])
                byte = flipped(file.read(1))
                file.seek(-1, os.SEEK_CUR)
                file.write(byte)
        damaged = open_store(lambda: LMCacheMPStore("127.0.0.1", server.port, 0.2))
        assert hits(damaged) == 0
        fill(damaged)
        assert hits(open_store(lambda: LMCacheMPStore("127.0.0.1", server.port, 0.2))) > 0, "they are written again"


ANSWERS: dict[str, tuple[int, Any, str]] = {
    "no memory": (14, {"shm_name": "", "pool_size": 0}, "offers no memory.*--shm-name NAME --no-l1-use-lazy"),
    "a path": (
        14,
        {"shm_name": "../etc/passwd", "pool_size": 9},
        r"called '../etc/passwd', which is no name in /dev/shm",
    ),
    "a parent": (14, {"shm_name": "..", "pool_size": 9}, "no name in /dev/shm"),
    "no such file": (14, {"shm_name": "core-no-such-memory", "pool_size": 9}, "No such file"),
    "small chunks": (21, 4, "chunks have 4 tokens, expected 16"),
    "another type": (21, "many", "answers otherwise than LMCache's MP server does"),
    "a place beyond": (
        16,
        {"context": {"slots": [{"offset": 1 << 40, "length": 1 << 20}]}},
        "gives 1 places.*at 1099511627776",
    ),
    "before": (16, {"context": {"slots": [{"offset": -1, "length": 1 << 20}]}}, "at -1; expected one"),
    "too small": (16, {"context": {"slots": [{"offset": 0, "length": 9}]}}, "with 9 bytes at 0"),
    "refused": (17, False, "did not take an object"),
    "silence": (16, None, "does not answer in time"),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_mp_server_that_answers_otherwise_gets_no_page(kind: str) -> None:
    call, wrong, sentence = ANSWERS[kind]
    with MPServer() as server:
        server.changed = lambda asked, answer: wrong if asked == call else answer
        store = LMCacheMPStore("127.0.0.1", server.port, 0.5)
        store.prepare(memoryview(bytearray(5000)))
        with pytest.raises((StoreError, OSError), match=sentence):
            store.write("00" * 20, (b"head", memoryview(bytes(4000))), replaces=False)
        assert server.memory.read_bytes().count(0) == 1 << 22 or kind == "refused"
        server.changed = lambda asked, answer: answer
        store.write("11" * 20, (b"head", memoryview(bytes(4000))), replaces=False)
        assert store.has(["11" * 20, "22" * 20]) == [True, False], "it is dialled again"
        store.close()


def test_an_mp_server_without_room_or_with_an_object_of_another_size() -> None:
    buffer = bytearray(5000)
    with MPServer(12_000) as server:
        store = LMCacheMPStore("127.0.0.1", server.port, 0.5)
        store.prepare(memoryview(buffer))
        for number in range(2):
            store.write(f"{number:040x}", (b"head", memoryview(bytes(4000))), replaces=False)
        with pytest.raises(StoreError, match="has no room"):
            store.write(f"{2:040x}", (b"head", memoryview(bytes(4000))), replaces=False)
        with pytest.raises(StoreError, match="an object has 5001 bytes, expected at most 5000"):
            store.write(f"{3:040x}", (b"h", memoryview(bytes(5000))), replaces=False)
        store.write(f"{1:040x}", (b"other", memoryview(bytes([7]) * 4000)), replaces=True)
        assert store.read(f"{1:040x}") == 4005 and buffer[:6] == b"other\x07"
        assert store.read(f"{9:040x}") is None and server.num_locks == 0
        store.close()


def test_a_page_without_the_secret_is_computed(server: LMCacheServer, open_store: Open) -> None:
    """A store that knows the format makes a page whose checksum is right, under the name that the engine asks for."""
    secret = bytes(range(32))
    with_secret = open_store(dialled(server), secret=secret)
    tier = tier_of(with_secret)
    tier.write(0, key(1), page(1))
    assert tier.flush(10.0)
    forger = tier_of(open_store(dialled(server)))
    (name,) = server.objects
    head, values = forger._parts_of(type("Pending", (), {"group": 0, "key": key(1), "page": page(9)}))
    server.objects[name] = head + bytes(values)
    assert tier_of(open_store(dialled(server), secret=secret)).read(0, key(1)) is None
    assert forger.read(0, key(1)) is None


def test_a_store_that_hangs_stalls_no_request(server: LMCacheServer, open_store: Open) -> None:
    fill(open_store(dialled(server)))
    server.answer = lambda content: None
    late = open_store(dialled(server, 0.2))
    engine = Engine(late)
    assert engine.run(PROMPTS[0]) == 0
    asked = server.num_asked
    assert engine.run(PROMPTS[1]) == 0 and server.num_asked == asked, "it is left alone after a failure"
    assert tier_of(late).resting_s > 0


def test_a_store_that_dies_and_comes_back_empty_is_filled_again(open_store: Open) -> None:
    server = LMCacheServer()
    connector = open_store(dialled(server, 0.2))
    fill(connector)
    tier = tier_of(connector)
    server.close()
    assert hits(connector) == 0 and tier.resting_s > 0
    again = LMCacheServer(server.port)
    for rest in (tier._rest, tier.writer.rest):
        rest.end()
    assert not tier.holds(0, key(1)), "what it had may be lost"
    fill(connector)
    assert len(again.objects) == 7 * len(PROMPTS)
    assert hits(open_store(dialled(again))) == 28 * len(PROMPTS)
    again.close()


def test_an_mp_server_that_is_started_again_has_other_memory() -> None:
    name, buffer, parts = "00" * 20, bytearray(5000), (b"head", memoryview(bytes([7]) * 4000))
    with MPServer() as server:
        store = LMCacheMPStore("127.0.0.1", server.port, 0.5)
        store.prepare(memoryview(buffer))
        store.write(name, parts, replaces=False)
        assert store.has([name]) == [True]
        server.start_again()
        with pytest.raises(StoreError, match="started again"):  # what was stored there is forgotten then
            store.has([name])
        with pytest.raises(StoreError, match="started again"):
            store.write(name, parts, replaces=False)
        assert store.has([name]) == [False]
        store.write(name, parts, replaces=False)
        assert store.read(name) == 4004 and buffer[:5] == b"head\x07", "in the memory that it shares now"
        store.close()


def test_a_page_that_was_not_taken_is_not_believed_to_be_there(server: LMCacheServer, open_store: Open) -> None:
    server.drops_puts = True
    tier = tier_of(open_store(dialled(server)))
    tier.write(0, key(1), page(1))
    assert tier.flush(5.0) and tier.num_dropped == 1
    assert not tier.holds(0, key(1)) and tier.missing(key(1)) == "not_saved"


def test_names_are_asked_for_in_few_calls(server: LMCacheServer, open_store: Open) -> None:
    fill(open_store(dialled(server)))
    reader = open_store(dialled(server))
    server.num_asked = 0
    assert hits(reader, PROMPTS[:1]) == 28
    assert server.num_asked <= 8, "each of seven names once, and none for each page"
    server.num_asked = 0
    assert hits(reader, [range(1000, 1029)]) == 0
    assert server.num_asked <= 7


def test_an_answer_that_is_no_protocol_of_lmcache_ends_the_connection(server: LMCacheServer) -> None:
    other = lm.socket.create_server(("127.0.0.1", 0))
    store = LMCacheStore("127.0.0.1", other.getsockname()[1], 0.3)
    store.prepare(memoryview(bytearray(100)))
    with pytest.raises((StoreError, OSError)):
        store.has(["00" * 20])  # nobody answers
    connection = other.accept()[0]
    connection.close()

    def http() -> None:
        one = other.accept()[0]
        one.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(100))

    thread = threading.Thread(target=http)
    thread.start()
    with pytest.raises(StoreError, match="which LMCache's server never does"):
        store.has(["00" * 20])
    thread.join()
    other.close()


def test_where_a_store_may_be(tmp_path: Path) -> None:
    for url, sentence in (
        ("lm://10.0.0.7:65432", "beyond this machine pages need a secret.*lmcache.key_file"),
        ("redis://127.0.0.1:1", "expected lm://HOST:PORT or tcp://HOST:PORT"),
        ("tcp://10.0.0.7:5555", "10.0.0.7:5555: an MP server shares memory with engines of its own machine"),
        ("lm://nowhere", "expected HOST:PORT"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            lmcache.core_load(context_of(tmp_path, lmcache.Arguments(url=url)))
    with pytest.raises(ConfigError, match=r"beyond this machine.*mooncake_store.key_file"):
        mooncake_store.core_load(context_of(tmp_path, mooncake_store.Arguments(master="10.0.0.7:50051")))
    if not HAS_MOONCAKE:
        with pytest.raises(ConfigError, match=r"core-engine-kv-connectors\[mooncake\]"):
            mooncake_store.core_load(context_of(tmp_path, mooncake_store.Arguments(master="127.0.0.1:50051")))
    server = LMCacheServer()
    connector = lmcache.core_load(context_of(tmp_path, lmcache.Arguments(url=server.url)))
    assert connector.places == ("lmcache", "lmcache")
    connector.close(1.0)
    server.close()
