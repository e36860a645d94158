"""Processed media that API processes share: what is kept, what leaves, and what a process that dies or stops leaves behind."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from core_media.config import IMAGE
from core_media.processing import shared_cache
from core_media.processing.item_names import ItemName
from core_media.processing.processed import Processed
from core_media.processing.shared_cache import ENTRY, INDEX, RING, SharedCache, shared_memory
from tests.apis.test_real_server import Server, serving
from tests.media.checkpoints import file_of, picture
from tests.media.test_server import data_url

SIZE = 10_000
MOST = 4_000
pytestmark = pytest.mark.skipif(not shared_cache.is_possible(), reason="the system has no such memory")


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def item(number: int, size: int = 900) -> Processed:
    return Processed(f"{number}", "<image>", bytes([number % 256]) * size)


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = shared_memory(SIZE)
    yield descriptor
    os.close(descriptor)


def test_what_one_process_keeps_another_finds(memory: int) -> None:
    one, other = SharedCache(memory, MOST), SharedCache(memory, MOST)
    one.put(key(1), item(1))
    assert other.get(key(1)) == item(1) and other.get(key(2)) is None
    name = ItemName("me", "a", IMAGE)
    other.name(name, key(1))
    assert one.named(name) == item(1)
    assert one.named(ItemName("them", "a", IMAGE)) is None
    other.put(key(2), item(2))
    one.name(name, key(2))
    assert other.named(name) == item(2)
    other.clear()
    assert one.get(key(1)) is None and one.named(name) is None
    one.put(key(1), item(3))
    assert other.get(key(1)) == item(3)
    one.close()
    assert other.get(key(1)) == item(3)
    other.close()


def test_the_oldest_items_leave_and_large_ones_are_not_kept(memory: int) -> None:
    cache = SharedCache(memory, MOST)
    cache.put(key(0), item(0, MOST))
    assert cache.get(key(0)) is None
    for number in range(1, 400):
        cache.put(key(number), item(number, 100 + 7 * number % 800))
        assert cache.get(key(number)) == item(number, 100 + 7 * number % 800)
        for old in range(1, number):
            assert cache.get(key(old)) in (None, item(old, 100 + 7 * old % 800))
    assert cache.get(key(1)) is None
    kept = [number for number in range(1, 400) if cache.get(key(number)) is not None]
    assert kept == list(range(kept[0], 400)) and len(kept) >= 8
    cache.close()


def test_entries_that_share_a_place_leave_in_order(memory: int) -> None:
    cache = SharedCache(memory, MOST)
    keys = [bytes(4) + number.to_bytes(28, "big") for number in range(1, 11)]
    for number, each in enumerate(keys):
        cache.put(each, item(number, 50))
    assert [cache.get(each) for each in keys] == [None, None, *(item(number, 50) for number in range(2, 10))]
    cache.close()


def test_damaged_memory_is_a_miss(memory: int) -> None:
    cache = SharedCache(memory, MOST)
    cache.put(key(1), item(1))
    places = range(INDEX, RING, ENTRY.size)
    [place] = [place for place in places if cache._entry(place)[0] == key(1)]
    found, position, length = cache._entry(place)
    for wrong in (
        (found, position, SIZE + 1),
        (found, position + (1 << 62), length),
        (found, position + 1, length - 1),
    ):
        ENTRY.pack_into(cache._memory, place, *wrong)
        assert cache.get(key(1)) is None
    with pytest.raises(OSError):
        os.ftruncate(memory, 10)
    cache.close()


def test_processes_and_threads_write_at_once_and_one_that_is_stopped_costs_misses(memory: int) -> None:
    script = (
        "import sys; from core_media.processing.processed import Processed\n"
        "from core_media.processing.shared_cache import SharedCache\n"
        f"MOST = {MOST}\n"
        "def key(number): return number.to_bytes(32, 'big')\n"
        "def item(number): return Processed(f'{number}', '<image>', bytes([number % 256]) * 900)\n"
        "cache = SharedCache(int(sys.argv[1]), MOST)\n"
        "number = 0\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    number += 1; cache.put(key(number), item(number)); assert cache.get(key(number)) in (None, item(number))\n"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", script, str(memory)], pass_fds=(memory,), stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
        cache = SharedCache(memory, MOST)
        wrong: list[int] = []

        def read(start: int) -> None:
            for number in range(start, start + 300):
                cache.put(key(1 << 40 | number), item(number))
                for wanted in (number, 1 << 40 | number):
                    if cache.get(key(wanted)) not in (None, item(wanted % (1 << 40))):
                        wrong.append(wanted)

        threads = [threading.Thread(target=read, args=(1000 * place,)) for place in range(2)]
        for thread in threads:
            thread.start()
        writers[0].kill()  # its lock is gone with it
        for thread in threads:
            thread.join()
        assert not wrong and writers[1].poll() is None
        writers[1].send_signal(signal.SIGSTOP)
        cache.get(key(1))  # returns, whether it was stopped with the lock or without
        writers[1].kill()
        writers[1].wait()
        cache.put(key(7 << 50), item(7))
        assert cache.get(key(7 << 50)) == item(7)
        cache.close()
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
            assert writer.stdout is not None
            writer.stdout.close()


@pytest.mark.media
def test_an_id_is_known_to_all_processes_of_a_server(llava: Path, tmp_path: Path) -> None:
    arguments = ["--dtype", "float32", "--api-server-count", "2", "--mm-processor-cache-type", "shm", "--seed", "0"]
    url = {"url": data_url(file_of(picture(1)))}

    def status(server: Server, part: dict[str, Any]) -> int:
        """Ask by a connection of its own, which either process may accept."""
        messages = [{"role": "user", "content": [{"type": "image_url", **part}]}]
        asked = {"messages": messages, "max_tokens": 1}
        return httpx.post(f"{server.base}/v1/chat/completions", json=asked, timeout=60).status_code

    with serving(tmp_path / "log", "--model", str(llava), *arguments) as server:
        assert status(server, {"image_url": None, "uuid": "a"}) == 400
        assert status(server, {"image_url": url, "uuid": "a"}) == 200
        assert {status(server, {"image_url": None, "uuid": "a"}) for _ in range(24)} == {200}
        assert httpx.post(server.base + "/reset_mm_cache").status_code == 200
        assert {status(server, {"image_url": None, "uuid": "a"}) for _ in range(24)} == {400}
