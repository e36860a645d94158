"""Pins of prefixes whose pages host memory and disks hold: what does not fit the KV cache stays there, also after a restart."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from core import LLM
from core_kv_connectors.tiers.local import LocalTiers
from tests.kv.connector_rows import tiers_of
from tests.sessions.test_pins import Pinned, fill, prompt


def opened(path: Path, **options: object) -> LLM:
    given = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 2, "num_gpu_blocks_override": 40}
    return LLM(str(path), **given, **options)


def tiers(engine: Pinned) -> LocalTiers:
    found = tiers_of(engine.core.kv_services)
    assert isinstance(found, LocalTiers)
    return found


@pytest.fixture(scope="module", params=["tiny_llama", "tiny_lfm2"])
def path(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[LLM]:
    with opened(path, kv_offloading_size=1.0) as made:
        host = tiers(Pinned(made)).host
        assert host is not None
        host.capacity = 80 * made.llm_engine._live_client().core.executor.page_bytes
        yield made


@pytest.fixture
def engine(llm: LLM) -> Iterator[Pinned]:
    assert llm.reset_prefix_cache()
    pinned = Pinned(llm)
    yield pinned
    assert llm.reset_prefix_cache()
    assert pinned.held == [0, 0]
    host = tiers(pinned).host
    assert host is not None and not any(name in host._holds for name in host._pages)


def test_a_prefix_without_room_in_the_cache_is_held_in_host_memory(engine: Pinned) -> None:
    ids, _ = engine.run(prompt(1))
    other, _ = engine.run(prompt(2))
    answer = engine.pin(ids, share=0.125)
    assert answer["fits"] and answer["bytes"] == 0 < answer["held"]
    fill(engine, range(10, 26))
    assert engine.places(ids)["held"] == answer["held"] and engine.places(ids)["pinned"] == 0
    assert engine.run([*other, 9])[1] == 0
    assert engine.run([*ids, 9])[1] >= len(ids) - 16


def test_a_prefix_without_room_anywhere_is_refused_and_the_earlier_pin_stays(engine: Pinned) -> None:
    ids, _ = engine.run(prompt(1))
    answer = engine.pin(ids, share=0.5)
    assert answer["bytes"] > 0 == answer["held"], "host memory need not hold what the cache holds"
    before = engine.held
    longer, _ = engine.run([*ids, *prompt(3, 40)])
    assert not engine.pin(longer, share=0.01)["fits"]
    assert engine.held == before


def test_another_tenant_with_more_held_pages_gives_way(engine: Pinned) -> None:
    ids, _ = engine.run(prompt(1))
    longer, _ = engine.run(prompt(2, 200))
    host = tiers(engine).host
    assert host is not None
    host.capacity *= 3
    share = (engine.pin(longer, "long", tenant="a", share=0.1)["held"] + 1) / host.capacity
    answer = engine.pin(longer, "long", tenant="a", share=share)
    assert answer["fits"] and not answer["bytes"]
    answer = engine.pin(ids, "short", tenant="b", share=share)
    assert answer["fits"] and not answer["bytes"]
    assert engine.held[0] == 1, "both do not fit, and the tenant with more gives way"
    assert not engine.pin(longer, "long", tenant="a", share=share)["fits"], "but not the one with less"
    host.capacity //= 3


def test_a_pin_that_leaves_the_cache_is_held_in_host_memory(engine: Pinned) -> None:
    first, _ = engine.run(prompt(0, 80))
    number = 0
    while engine.core.scheduler.kv.pool.num_free > 12:
        ids, _ = engine.run(prompt(number, 80))
        assert engine.pin(ids, f"s{number}", share=1.0)["bytes"] > 0
        number += 1
    num_pins, num_blocks = engine.held
    ids, _ = engine.run(prompt(50, 250))
    assert len(ids) == 254, "it found room"
    assert engine.held[0] == num_pins and engine.held[1] < num_blocks
    fill(engine, range(10, 26))
    assert engine.run([*first, 9])[1] >= len(first) - 16


def test_a_disk_holds_what_the_cache_holds_too_and_a_restart_finds_it(path: Path, tmp_path: Path) -> None:
    with opened(path, kv_offloading_disk_path=str(tmp_path)) as llm:
        engine = Pinned(llm)
        ids, _ = engine.run(prompt(1))
        assert engine.pin(ids)["held"] > 0
    with opened(path, kv_offloading_disk_path=str(tmp_path)) as llm:
        engine = Pinned(llm)
        disk = tiers(engine).disk
        assert disk is not None
        disk.writer.capacity = 80 * engine.core.executor.page_bytes
        fill(engine, range(10, 26))
        assert disk.flush()
        assert engine.run([*ids, 9])[1] >= len(ids) - 16
