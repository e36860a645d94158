"""KV events of disks, shared directories and offered pages, as a router sees them that knows nothing else."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from core import LLM, SamplingParams
from core.kv.sequence import KVSequence
from core_kv_connectors.event_publisher import END_OF_REPLAY, PublishedEvents
from core_kv_connectors.events import AllBlocksCleared, EventLog
from core_kv_connectors.page_lists import MOST_TAKEN, PageLists
from core_kv_connectors.tiers.disk import DiskTier
from tests.apis.serving_processes import free_port
from tests.inside import core_of
from tests.kv.connector_rows import tiers_of
from tests.kv.test_peers import until
from tests.kv.tier_fakes import PAGE_BYTES, key, page

PROMPTS = [[1, *(3 + stride * index % 250 for index in range(96))] for stride in (1, 3, 7, 11)]
ONE = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)


class Router:
    """Which (group, digest) each medium has, from a replay of all events alone."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._asks = self._context.socket(zmq.DEALER)
        self._asks.connect(address)
        self.media: dict[str, set[tuple[int, bytes]]] = {}

    def read(self) -> None:
        """Begin with nothing, as after a restart, and ask for all there was."""
        self.media = {}
        self._asks.send_multipart((b"", bytes(8)))
        while True:
            assert self._asks.poll(5000)
            _, number, payload = self._asks.recv_multipart()
            if number == END_OF_REPLAY:
                return
            for name, *fields in msgspec.msgpack.decode(payload)[1]:
                self.apply(name, fields)

    def apply(self, name: str, fields: list[Any]) -> None:
        if name == "AllBlocksCleared":
            self.media = {}
        elif name == "BlockStored":
            hashes, parent, token_ids, size, _, medium, _, _, group, *_ = fields
            assert size == 16 and (medium == "GPU" or (parent is None and not token_ids))
            self.media.setdefault(medium, set()).update((group, digest) for digest in hashes)
        else:
            hashes, medium, group = fields
            gone = {(group, digest) for digest in hashes}
            assert gone <= self.media[medium], "what leaves was there"
            self.media[medium] -= gone

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places are listed every 20 ms, and an idle engine looks as often."""
    monkeypatch.setattr(PageLists.__init__, "__defaults__", (0.02,))
    monkeypatch.setattr("core_kv_connectors.event_publisher.IDLE_MS", 20)


@pytest.fixture
def router(tmp_path: Path) -> Iterator[Router]:
    made = Router(f"ipc://{tmp_path}/past")
    yield made
    made.close()


def engine(model: Path, folder: Path, **more: Any) -> LLM:
    events = {
        "enable_kv_cache_events": True,
        "endpoint": f"ipc://{folder}/live",
        "replay_endpoint": f"ipc://{folder}/past",
        "buffer_steps": 2,
    }
    room = {"max_model_len": 128, "max_num_seqs": 1, "num_gpu_blocks_override": 20, "dtype": "float32"}
    return LLM(model=str(model), use_tqdm_on_load=False, kv_events_config=events, **room, **more)


def digests(llm: LLM, prompt: list[int]) -> set[tuple[int, bytes]]:
    """(group, digest) of each block that a prompt needs from its cache."""
    kv = core_of(llm).scheduler.kv
    sequence = KVSequence(list(prompt))
    return {(0, kv.key(sequence, index).digest) for index in range((len(prompt) - 1) // kv.block_size)}


def idle(llm: LLM) -> None:
    """What the loop of an engine does while no request runs."""
    core = core_of(llm)
    core.kv_services.save_idle(core.scheduler.kv, core.queue.copy)


PLACES = {
    "DISK": {"kv_offloading_disk_path": "{}/pages", "kv_offloading_disk_size": 0.1},
    "FILE": {"kv_connectors": ["file"], "kv_connectors_config": {"file": {"directory": "{}/pages"}}},
    "SHM": {"kv_connectors": ["shm"], "kv_connectors_config": {"shm": {"directory": "{}/pages"}}},
}


def placed(options: Any, folder: Path) -> Any:
    if isinstance(options, dict):
        return {name: placed(value, folder) for name, value in options.items()}
    return options.format(folder) if isinstance(options, str) else options


@pytest.mark.parametrize("medium", list(PLACES))
def test_a_router_knows_what_a_place_has_kept_from_an_earlier_engine(
    medium: str, tiny_llama: Path, tmp_path: Path, router: Router
) -> None:
    """It and the engine have restarted: each block that the engine then finds in the place is one that the router knew."""
    options = placed(PLACES[medium], tmp_path)
    with engine(tiny_llama, tmp_path, **options) as llm:
        for prompt in PROMPTS:
            llm.generate([{"prompt_token_ids": prompt}], ONE, use_tqdm=False)
        idle(llm)
        assert tiers_of(core_of(llm).scheduler.kv.connectors).disk.flush()
    with engine(tiny_llama, tmp_path, **options) as llm:

        def known() -> bool:
            idle(llm)
            router.read()
            return bool(router.media.get(medium))

        until(known)
        idle(llm)
        router.read()
        num_true = num_known = 0
        for prompt in PROMPTS:
            foreseen = digests(llm, prompt) & router.media[medium]
            (output,) = llm.generate([{"prompt_token_ids": prompt}], ONE, use_tqdm=False)
            num_true += (output.num_cached_tokens or 0) // 16
            num_known += len(foreseen)
        assert num_true >= 20 and num_known >= 0.95 * num_true
        router.read()
        assert router.media["GPU"], "a replay of what is no longer kept has every medium"
        llm.reset_prefix_cache()

        def empty() -> bool:
            idle(llm)
            router.read()
            return not any(router.media.values())

        until(empty)


def test_a_router_knows_which_pages_an_engine_offers(tiny_llama: Path, tmp_path: Path, router: Router) -> None:
    config = {"tcp": {"listen": f"127.0.0.1:{free_port()}"}}
    with engine(tiny_llama, tmp_path, kv_connectors=["tcp"], kv_connectors_config=config) as llm:
        for prompt in PROMPTS:
            llm.generate([{"prompt_token_ids": prompt}], ONE, use_tqdm=False)
        offer = tiers_of(core_of(llm).scheduler.kv.connectors).disk.offer

        def agrees() -> bool:
            idle(llm)
            router.read()
            return router.media.get("TCP") == set(offer.listed()) and len(offer) > 0

        until(agrees)
        assert digests(llm, PROMPTS[0]) <= router.media["TCP"]


def test_pages_of_others_and_deletions_by_others_are_events(tmp_path: Path) -> None:
    """Two engines share a directory: the first one's events have what the second one writes and deletes."""
    one, other = (DiskTier(tmp_path, "ab" * 16, 1 << 20, PAGE_BYTES) for _ in range(2))
    log, lists, known = EventLog(16), PageLists(), set()
    lists.watch("FILE", one.pages)

    def told() -> set[bytes]:
        for medium, stored, removed in lists.take():
            assert medium == "FILE"
            for place in removed:
                log.page_removed(medium, *place)
            for place in stored:
                log.page_stored(medium, *place)
        batch = log.take()
        for event in [] if batch is None else batch.events:
            if isinstance(event, AllBlocksCleared):
                known.clear()
                continue
            change = known.update if type(event).__name__ == "BlockStored" else known.difference_update
            change(event.block_hashes)
        return known

    other.write(0, key(1), page(1))
    one.write(0, key(2), page(2))
    until(lambda: told() == {key(1).digest, key(2).digest})
    other.discard(0, key(1))
    until(lambda: told() == {key(2).digest})
    log.cleared()
    lists.forget()
    until(lambda: told() == {key(2).digest})
    for tier in (one, other):
        tier.close()
    lists.close()


def test_a_long_list_comes_in_parts_and_a_place_that_fails_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    names = {(0, number.to_bytes(32, "big")) for number in range(3 * MOST_TAKEN)}
    broken = False

    def source() -> Iterator[tuple[int, bytes]]:
        if broken:
            raise OSError("the mount is gone")
        yield from names

    lists = PageLists()
    lists.watch("DISK", source)
    until(lambda: lists.has_changes)
    found: set[tuple[int, bytes]] = set()
    while lists.has_changes:
        changes = lists.take()
        assert sum(len(change.stored) for change in changes) <= MOST_TAKEN
        found.update(*(change.stored for change in changes))
    assert found == names
    broken = True
    until(lambda: "the mount is gone" in caplog.text)
    assert not lists.has_changes
    broken = False
    names.clear()
    until(lambda: lists.has_changes)
    assert sum(len(change.removed) for change in lists.take()) == MOST_TAKEN
    lists.close()


def test_an_engine_that_is_closed_lists_nothing(tiny_llama: Path, tmp_path: Path) -> None:
    with engine(tiny_llama, tmp_path, **placed(PLACES["DISK"], tmp_path)) as llm:
        published = next(one for one in core_of(llm).kv_services.connectors if isinstance(one, PublishedEvents))
        thread = published._lists._thread
        assert thread is not None and thread.is_alive()
    until(lambda: time.sleep(0.01) or not thread.is_alive())
