"""Pins of prefixes in a real engine: what is pinned is not evicted, and nothing stays pinned for ever."""

from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams
from core.engine.core import EngineCore
from core_observers.engine.session_pins import SessionPins
from tests.sessions.clock import Clock

PARAMS = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
BLOCKS = {"tiny_llama": 40, "tiny_lfm2": 40, "tiny_gemma3": 80}
Make = Callable[..., "Pinned"]


class Pinned:
    """An LLM with a small cache, and the pins of its engine. clock: of the pins."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self.clock = Clock()
        self.core.scheduler.check_integrity()
        self.pins._clock = self.clock

    @property
    def core(self) -> EngineCore:
        return self.llm.llm_engine._live_client().core

    @property
    def pins(self) -> SessionPins:
        return next(each for each in self.core.observers if isinstance(each, SessionPins))

    def run(self, prompt: list[int]) -> tuple[list[int], int]:
        """Run a prompt; returns all its tokens, and how many came from the cache."""
        (output,) = self.llm.generate({"prompt_token_ids": prompt}, PARAMS, use_tqdm=False)
        return [*prompt, *output.outputs[0].token_ids], output.num_cached_tokens or 0

    def pin(self, ids: list[int], name: str = "s", tenant: str = "", share: float = 0.5, client: int = 0) -> Any:
        tokens = array("i", ids).tobytes()
        prefix = {"tokens": tokens, "lengths": [len(ids)], "tenant": tenant, "num_public_tokens": len(ids)}
        given = {"server": "", "name": name, "prefix": prefix, "share": share, "lifetime": 60.0}
        answer = self.core.call("pin_prefix", given, client)
        self.core.call("check_integrity")
        return answer

    def places(self, ids: list[int], name: str = "s") -> Any:
        prefix = {"tokens": array("i", ids).tobytes()}
        return self.core.call("prefix_places", {"server": "", "name": name, "prefix": prefix})

    @property
    def held(self) -> list[int]:
        """Number of pins, and of their blocks."""
        self.core.call("check_integrity")
        found: list[int] = self.core.call("num_pins")
        return found


@pytest.fixture(scope="module", params=list(BLOCKS))
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    path: Path = request.getfixturevalue(request.param)
    blocks = BLOCKS[request.param]
    with LLM(str(path), dtype="float32", max_model_len=256, max_num_seqs=2, num_gpu_blocks_override=blocks) as made:
        yield made


@pytest.fixture
def engine(llm: LLM) -> Iterator[Pinned]:
    assert llm.reset_prefix_cache()
    pinned = Pinned(llm)
    yield pinned
    llm.reset_prefix_cache()
    assert pinned.held == [0, 0]


def prompt(seed: int, length: int = 90) -> list[int]:
    return [(7 * seed + 3 * place * place) % 90 + 5 for place in range(length)]


def fill(engine: Pinned, seeds: range) -> None:
    """Use the whole cache for other prompts."""
    for seed in seeds:
        engine.run(prompt(seed, 200))


def test_a_pinned_prefix_survives_what_evicts_all_others(engine: Pinned) -> None:
    ids, _ = engine.run(prompt(1))
    other, _ = engine.run(prompt(2))
    answer = engine.pin(ids)
    assert answer["fits"] and 0 < answer["bytes"] <= answer["room"]
    fill(engine, range(10, 16))
    assert engine.places(ids)["pinned"] == answer["bytes"] <= engine.places(ids)["places"]["pool"]
    assert engine.run([*ids, 9])[1] >= len(ids) - 16
    assert engine.run([*other, 9])[1] == 0
    assert engine.core.call("unpin_prefix", {"server": "", "name": "s", "tenant": ""})
    assert engine.held == [0, 0]


def test_a_longer_prefix_takes_the_place_of_a_shorter_one(engine: Pinned) -> None:
    ids, _ = engine.run(prompt(1))
    first = engine.pin(ids)["bytes"]
    longer, _ = engine.run([*ids, *prompt(3, 40)])
    assert engine.pin(longer)["bytes"] >= first
    assert engine.held[0] == 1


def test_pins_end_with_time_client_and_cache(engine: Pinned) -> None:
    ids, _ = engine.run(prompt(1))
    engine.pin(ids)
    engine.clock.now = 61.0
    engine.run(prompt(2))
    assert engine.held == [0, 0]
    engine.pin(ids, client=7)
    engine.core.client_gone(7)
    assert engine.held == [0, 0]
    engine.pin(ids)
    assert engine.llm.reset_prefix_cache()
    assert engine.held == [0, 0] and engine.places(ids)["places"] == {"pool": 0}
    engine.run(prompt(1))
    engine.pin(ids)
    engine.core.sequences.start_over()
    assert engine.held == [0, 0], "the pool is another one"


def test_an_idle_engine_reports_what_pins_hold(engine: Pinned) -> None:
    ids, _ = engine.run(prompt(1))

    def usage() -> float:
        """Of the next message, which an engine without work sends only if there is news."""
        assert engine.core.has_work()
        return engine.core.step().stats.kv_cache_usage

    engine.pin(ids)
    assert usage() > 0.0
    assert not engine.core.has_work()
    engine.core.call("unpin_prefix", {"server": "", "name": "s", "tenant": ""})
    assert usage() == 0.0


def test_a_pin_that_is_renewed_lasts_longer_than_before(engine: Pinned) -> None:
    ids, _ = engine.run(prompt(1))
    engine.pin(ids, "a")
    engine.pin(ids, "b")
    engine.clock.now += 40.0
    engine.pin(ids, "a")
    engine.clock.now += 40.0
    engine.run(prompt(2))
    assert engine.held[0] == 1 and engine.places(ids, "a")["pinned"]
    engine.clock.now += 21.0
    engine.run(prompt(2))
    assert engine.held == [0, 0]


def test_shares(engine: Pinned) -> None:
    ids, _ = engine.run(prompt(1))
    assert not engine.pin(ids, share=0.01)["fits"] and engine.held == [0, 0]
    assert engine.pin(ids, "a")["fits"]
    before = engine.held
    assert not engine.pin([*ids, *prompt(5, 20)], "a", share=0.01)["fits"]
    assert engine.held == before, "the earlier pin stays"
    others, _ = engine.run(prompt(4))
    share = (before[1] + 1.5) / engine.core.scheduler.kv.pool.capacity
    assert not engine.pin(others, "b", share=share)["fits"]
    assert engine.held == before, "of one tenant nothing gives way to itself"


def test_a_request_that_needs_the_room_gets_it(engine: Pinned, caplog: pytest.LogCaptureFixture) -> None:
    number = 0
    while engine.core.scheduler.kv.pool.num_free > 12:
        ids, _ = engine.run(prompt(number, 80))
        engine.pin(ids, f"s{number}", share=1.0)
        number += 1
    before = engine.held
    ids, _ = engine.run(prompt(50, 250))
    assert len(ids) == 254
    assert 0 < engine.held[0] < before[0]
    assert "gave way" in caplog.text
