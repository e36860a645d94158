"""Connectors with a half that moves the bytes itself: the cache keeps its contract, and a half that fails costs hits alone."""

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams
from core.api.errors import ConfigError
from core.api.messages import EngineRequest
from core.engine.composition import build_engine, find_observers
from core.kv.sequence import KVSequence
from core.plugin.hookspecs import PluginSpec
from core_config.resolve import resolve
from core_frontend.library.lora_request import LoRARequest
from core_kit.case import Subject
from core_kit.checks.kv_world import ONE, opened
from core_kv_connectors.halves.connector import SplitConnector
from core_runtime.executor.uniproc import UniprocExecutor
from core_supervision.link.anonymous_file import anonymous_file
from tests.adapters.drawn import shapes_of, write_adapter
from tests.engine import test_kept_kv as kept_kv
from tests.inside import core_of
from tests.kv.conversations import NUM_TURNS, Case, checkpoint
from tests.kv.twin import NAME, Harmed, connector_of, options_of, save_in_idle_time, thread_of, write_twin

BLOCK = 8
GREEDY = SamplingParams(max_tokens=8, temperature=0.0, logprobs=2, ignore_eos=True)
FIRST, *OTHERS = ([1, *(4 + stride * index % 250 for index in range(95))] for stride in (1, 3, 7, 11))
SMALL = {
    "max_model_len": 128,
    "block_size": BLOCK,
    "max_num_seqs": 2,
    "use_tqdm_on_load": False,
    "num_gpu_blocks_override": 33,
}


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        yield write_twin(tmp_path_factory.mktemp("package"), patch)


class Twins(Case):
    """Conversations with an engine whose blocks go to the connector of two halves, in turns that all lose their memory."""

    def __init__(self, plugin: Path, *arguments: Any, **options: Any) -> None:
        self.plugin = plugin
        super().__init__(*arguments, **options)
        # What is evicted before it was saved is lost, so that a turn must have room for its states.
        self.options["num_gpu_blocks_override"] = 4800 // self.block_size

    def _evict(self, llm: LLM) -> None:
        for _ in range(3):
            super()._evict(llm)

    def _places(self, pages: Path) -> dict[str, Any]:
        more = {"enable_sleep_mode": True} if self.way == "slept" else {}
        return options_of(self.plugin, pages) | more

    def _lose(self, llm: LLM) -> LLM:
        if self.way != "restart":
            save_in_idle_time(llm)
        core_of(llm).scheduler.check_integrity()
        return super()._lose(llm)


WAYS = [
    ("llama", "host", 0),
    pytest.param("qwen3_next", "host", 1, marks=pytest.mark.slow),
    pytest.param("gemma3", "restart", 0, marks=pytest.mark.slow),
    ("lfm2", "slept", 0),
    *(
        pytest.param(family, way, seed, marks=pytest.mark.slow)
        for seed in range(2, 5)
        for family in ("llama", "gemma3", "deepseek_v3", "lfm2", "qwen3_next", "mamba2", "jamba")
        for way in ("host", "restart", "slept", "swapped", "preempted")
    ),
]


@pytest.mark.parametrize(("family", "way", "seed"), WAYS)
def test_the_next_turn_computes_its_new_tokens_and_one_block(
    plugin: Path, tmp_path: Path, family: str, way: str, seed: int
) -> None:
    path = checkpoint(family, tmp_path / "model")
    with LLM(str(path), max_model_len=512, enable_prefix_caching=False, use_tqdm_on_load=False) as plain:
        assert Twins(plugin, path, way, seed, plain, tmp_path / "pages").run() >= NUM_TURNS


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint("llama", tmp_path_factory.mktemp("llama") / "model")


@pytest.fixture(scope="module")
def answers(model: Path) -> list[Any]:
    """What an engine without a cache answers."""
    with LLM(str(model), enable_prefix_caching=False, **SMALL) as llm:
        return [ask(llm, prompt)[:2] for prompt in (FIRST, *OTHERS)]


@pytest.fixture
def kept(request: pytest.FixtureRequest) -> Iterator[int]:
    """The file in which blocks outlive an engine."""
    if request.config.getoption("--fake-device") is not None:
        pytest.skip("a device with memory of its own does not outlive the engine")
    descriptor = anonymous_file("test-halves", 0)
    yield descriptor
    os.close(descriptor)


def ask(llm: LLM, prompt: list[int]) -> tuple[list[int], list[dict[int, float]], int]:
    """The answer, its log-probabilities, and the number of cached tokens of the prompt."""
    (output,) = llm.generate([{"prompt_token_ids": prompt}], GREEDY, use_tqdm=False)
    (choice,) = output.outputs
    numbers = [{token: entry.logprob for token, entry in row.items()} for row in choice.logprobs]
    return list(choice.token_ids), numbers, output.num_cached_tokens


def harm(llm: LLM, method: str, how: str) -> Harmed:
    """Let a method of an engine's worker half fail from now on."""
    thread = thread_of(llm)
    thread._half = Harmed(thread._half, method, how)
    return thread._half


def visit(llm: LLM, answers: list[Any]) -> int:
    """Ask everything, and the first prompt again; returns how many of its tokens were cached."""
    for prompt, answer in zip((FIRST, *OTHERS), answers, strict=True):
        assert ask(llm, prompt)[:2] == answer
        for _ in range(40):
            core_of(llm).idle()
            time.sleep(0.001)
    *answer, cached = ask(llm, FIRST)
    assert tuple(answer) == answers[0]
    return cached


@pytest.mark.parametrize("asynchronous", [False, True])
def test_blocks_come_back_from_the_half(plugin, model, answers, tmp_path, asynchronous):
    """And an engine of later finds them, as does another one at the same time."""
    options = SMALL | options_of(plugin, tmp_path) | {"async_scheduling": asynchronous}
    with LLM(str(model), **options) as llm:
        assert visit(llm, answers) == 88
        stats = llm.stats()
        assert stats.tier_hits >= 88 and stats.tier_saved >= 44
        save_in_idle_time(llm)
        core_of(llm).scheduler.check_integrity()
        assert not core_of(llm).scheduler.kv.pool.pins
        with LLM(str(model), **options) as other:
            assert ask(other, OTHERS[0]) == (*answers[1], 88)


@pytest.mark.parametrize(
    ("method", "how"), [("load", "raises"), ("load", "loses"), ("save", "raises"), ("save", "loses")]
)
def test_what_does_not_come_is_computed(plugin, model, answers, tmp_path, method, how):
    with LLM(str(model), **SMALL, **options_of(plugin, tmp_path)) as llm:
        half = harm(llm, method, how)
        assert visit(llm, answers) <= 88 - BLOCK * (method == "load")
        assert half.num_harmed
        half.free.set()
        visit(llm, answers)
        assert visit(llm, answers) == 88, "the connector is still there"
        save_in_idle_time(llm)
        assert not core_of(llm).scheduler.kv.pool.pins


def test_a_half_that_cannot_be_asked_is_left_out(plugin, model, answers, tmp_path):
    with LLM(str(model), **SMALL, **options_of(plugin, tmp_path)) as llm:
        half = harm(llm, "poll", "raises")
        core, twin = core_of(llm), connector_of(llm)
        for prompt, answer in zip((FIRST, *OTHERS), answers, strict=True):
            assert ask(llm, prompt)[:2] == answer
        assert half.num_harmed and twin not in core.kv_services.connectors
        assert ask(llm, FIRST)[:2] == answers[0]
        assert not core.scheduler.kv.pool.pins, "its half has ended, so that nothing is in its hands"
        core.scheduler.check_integrity()


@pytest.mark.parametrize("method", ["load", "save"])
def test_a_half_that_hangs_keeps_its_blocks_and_nothing_else(plugin, model, answers, tmp_path, monkeypatch, method):
    monkeypatch.setattr("core_kv_connectors.halves.connector.LATE_S", 0.5)
    monkeypatch.setattr("core.kv.loads.MAX_LOAD_S", 1.0)
    with LLM(str(model), **SMALL, **options_of(plugin, tmp_path)) as llm:
        if method == "load":
            assert visit(llm, answers) == 88
            visit(llm, answers)
        half = harm(llm, method, "hangs")
        for prompt, answer in zip((*OTHERS, FIRST), (*answers[1:], answers[0]), strict=True):
            assert ask(llm, prompt)[:2] == answer
        core = core_of(llm)
        assert half.num_harmed == 1 and 0 < sum(core.scheduler.kv.pool.pins.values()) <= 8, "a quarter of the pool"
        core.scheduler.check_integrity()
        # All sequences start over with a new pool: what the half may still touch stays taken there.
        held = set(core.scheduler.kv.pool.pins)
        core._runner.start_over()
        assert ask(llm, FIRST)[:2] == answers[0]
        assert set(core.scheduler.kv.pool.pins) == held
        half.free.set()
        save_in_idle_time(llm)
        assert not core.scheduler.kv.pool.pins
        core.scheduler.check_integrity()
        visit(llm, answers)
        assert visit(llm, answers) == 88


def test_a_page_that_comes_late_is_named(plugin, tmp_path):
    subject = Subject("kv_connector", NAME, plugins=str(plugin), arguments={"directory": str(tmp_path)})
    with opened(subject) as world:
        world.fill()
        thread = world.connector._link.half
        half = thread._half = Harmed(thread._half, "load", "hangs")
        sequence = KVSequence(list(ONE))
        load = world.kv.lookup(sequence)
        world.connectors.after_step(world.kv)
        load.finish()  # as `KVConnectors` does after ten seconds
        assert world.kv.loads.is_over(sequence.load)
        hit = world.kv.lookup(sequence)
        late = world.kv.key(sequence, hit.num_tokens // world.kv.block_size)
        assert world.connector.missing(late) == "page_late"
        half.free.set()


def test_resets_and_sleep(plugin, model, answers, tmp_path):
    """A reset drops the pages of this engine; sleep frees the memory that the half had, and wakes with another one."""
    with LLM(str(model), **SMALL, **options_of(plugin, tmp_path), enable_sleep_mode=True) as llm:
        visit(llm, answers)
        assert llm.reset_prefix_cache()
        assert ask(llm, FIRST) == (*answers[0], 0)
        save_in_idle_time(llm)
        half = thread_of(llm)._half
        llm.sleep(2)
        assert not half._arena
        gc.collect()
        llm.wake_up()
        assert ask(llm, FIRST) == (*answers[0], 88)
        assert connector_of(llm).num_failed == 0


@pytest.mark.parametrize("argument", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_ranks_are_refused_before_anything_is_read(plugin, model, tmp_path, argument):
    given = {"model": str(model), **SMALL, **options_of(plugin, tmp_path), argument: 2}
    with pytest.raises(ConfigError, match=rf"--{argument.replace('_', '-')} 2: .*'twin' allows only 1"):
        resolve(given, context="serve", environ={})


@pytest.mark.slow
def test_ranks_refuse_a_half_whose_manifest_forgot_to(plugin, model, tmp_path, monkeypatch):
    monkeypatch.setattr(f"core_{NAME}.manifest.PluginSpec", lambda **given: PluginSpec(**{**given, "constraints": {}}))
    with pytest.raises(ConfigError, match=r"twin.*one process"):
        LLM(str(model), **SMALL, **options_of(plugin, tmp_path), tensor_parallel_size=2)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "way"), [("llama", "restart"), ("lfm2", "host")])
def test_pages_of_adapters_are_their_own(plugin, tmp_path, family, way):
    """Conversations with the model, and with two adapters of it, side by side."""
    path = checkpoint(family, tmp_path / "model")
    shapes = shapes_of(str(path))
    names = ("first", "second")
    files = [write_adapter(tmp_path / name, shapes, 8, seed, 0.2) for seed, name in enumerate(names)]
    adapters = [LoRARequest(name, number + 1, str(files[number])) for number, name in enumerate(names)]
    options = {"enable_lora": True, "max_loras": 2}
    with LLM(str(path), max_model_len=512, enable_prefix_caching=False, use_tqdm_on_load=False, **options) as plain:
        case = Twins(plugin, path, way, 1, plain, tmp_path / "pages", (None, *adapters), **options)
        assert case.run() >= NUM_TURNS


@pytest.mark.parametrize("family", ["llama", pytest.param("lfm2", marks=pytest.mark.slow)])
def test_kept_blocks_and_those_of_a_half(plugin, tmp_path, kept, family):
    """An engine that is killed while its half fills blocks leaves none of them; the next one has the rest and the half's."""
    path = checkpoint(family, tmp_path / "model")
    sizes = {"num_gpu_blocks_override": 41, "block_size": BLOCK, "max_model_len": 256}
    config = kept_kv.config_of(path, kept, **sizes, **options_of(plugin, tmp_path / "pages"))
    plain = kept_kv.start(kept_kv.config_of(path, None, enable_prefix_caching=False, keep_kv=False))
    expected = [kept_kv.answer(plain, prompt)[0] for prompt in (FIRST, *OTHERS)]
    plain.close()
    first = build_engine(config, UniprocExecutor, find_observers())
    assert [kept_kv.answer(first, prompt) for prompt in (FIRST, *OTHERS)] == [(tokens, 0) for tokens in expected]
    (connector,) = [one for one in first.kv_services.connectors if isinstance(one, SplitConnector)]
    half = connector._link.half
    half._half = Harmed(half._half, "load", "hangs")
    first.add([EngineRequest("b", 0, FIRST, kept_kv.PARAMS, seed=4)])
    for _ in range(4):
        first.step()  # it waits for what the half never brings
    assert connector.num_moving
    second = build_engine(config, UniprocExecutor, find_observers())
    found = [kept_kv.answer(second, prompt) for prompt in (OTHERS[-1], FIRST, *OTHERS)]
    assert [tokens for tokens, _ in found] == [expected[-1], *expected]
    assert [cached for _, cached in found[:2]] == [88, 88], "one prompt was kept, the other one comes from the half"
    half._half.free.set()
    for core in (first, second):
        core.close()
