"""Engines die while requests run: every answer is the one of an engine that never died, to the bit."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import FakeExecutor, byte_source, make_config, reference
from mortal import MANY, Deadly, MortalClient, MortalSource, mortal_engine
from msgspec.structs import replace
from transformers import AutoModelForCausalLM

from core.api.config import EngineConfig, RestartConfig
from core.api.errors import EngineDeadError, EngineStalledError, RequestError
from core.api.messages import EngineRequest
from core.api.sampling_params import RequestOutputKind, SamplingParams
from core.api.structured_outputs import CompiledGrammar
from core_config.resolve import resolve
from core_frontend.api.outputs import RequestOutput
from core_frontend.async_engine import AsyncEngine
from core_frontend.denylist import KILLER_CODE, KILLER_STATUS, MATTERS, Denylist
from core_frontend.prompts.tokenizing import load_shared_tokenizer
from core_frontend.request_terms import ExplainTerms, RequestTerms
from core_runtime.executor.uniproc import UniprocExecutor
from core_supervision.revival import Reviver
from core_tokens.tokenizer import Tokenizer
from tests.executor import regex_grammar
from tests.speculative.checkpoints import save_eagle3
from tests.speculative.heads_of_families import HEADS, drafting_model
from tests.tiny_models import save_checkpoint

Use = Callable[[AsyncEngine, MortalSource], Awaitable[None]]


def tokenizer_of(config: EngineConfig) -> Tokenizer:
    tokenizer = load_shared_tokenizer(byte_source(), config)
    assert tokenizer is not None
    return tokenizer


def with_fakes(
    use: Use,
    lives: Sequence[int] = (),
    deadly: Deadly = lambda step, live: None,
    terms: RestartConfig = MANY,
    **options: Any,
) -> None:
    async def run() -> None:
        config = make_config(options=options)
        source = MortalSource(config, FakeExecutor, lives, deadly, terms)
        engine = mortal_engine(source, tokenizer_of(config))
        try:
            async with asyncio.timeout(20):
                await use(engine, source)
        finally:
            await engine.close()

    asyncio.run(run())


def delta(**fields: Any) -> SamplingParams:
    return SamplingParams(output_kind=RequestOutputKind.DELTA, **fields)


async def tokens_of(stream: AsyncIterator[RequestOutput]) -> list[int]:
    """Of the first choice, from its deltas."""
    found: list[int] = []
    async for output in stream:
        for one in output.outputs:
            assert one.finish_reason in (None, "length", "stop"), one.stop_reason
            found += one.token_ids if one.index == 0 else ()
    return found


@pytest.mark.parametrize("step", range(1, 41))
def test_a_death_at_any_step_changes_no_token(step: int) -> None:
    async def use(engine: AsyncEngine, source: MortalSource) -> None:
        streams = [engine.generate([i, 1, 2], delta(max_tokens=40), f"r{i}") for i in range(3)]
        found = await asyncio.gather(*map(tokens_of, streams))
        assert found == [reference([i, 1, 2], 40) for i in range(3)]
        assert len(source.clients) == 2
        await engine.check_integrity()

    with_fakes(use, [step])


def test_many_deaths_in_a_row() -> None:
    async def use(engine: AsyncEngine, source: MortalSource) -> None:
        streams = [engine.generate([i, 1, 2], delta(max_tokens=30 + i), f"r{i}") for i in range(12)]
        found = await asyncio.gather(*map(tokens_of, streams))
        assert found == [reference([i, 1, 2], 30 + i) for i in range(12)]
        assert +engine.restarts.num_restarts == {"killed": 6}

    with_fakes(use, [9, 1, 3, 8, 6, 15])


def test_a_stop_string_is_met_across_the_cut() -> None:
    async def use(engine: AsyncEngine, source: MortalSource) -> None:
        texts: list[str] = []
        async for output in engine.generate("Q:", delta(stop="o wor", n=2), "a"):
            texts += [one.text for one in output.outputs if one.index == 1]
        assert "".join(texts) == "hell"
        assert output.outputs[-1].stop_reason == "o wor"

    for step in range(5, 12):
        with_fakes(use, [step], script="hello world")


def settings(path: Path, **more: Any) -> Any:
    given = {"dtype": "float32", "max_model_len": 128, "max_num_seqs": 16, "max_num_batched_tokens": 64}
    given |= {"block_size": 4, "kv_cache_memory_bytes": 1 << 21, "device": "cpu", "use_tqdm_on_load": False}
    return resolve({"model": str(path), **given, **more}, context="llm", environ={})


PATTERN = r'(\{"name": "[a-z]{1,4}", "age": [0-9]{1,3}\}\n)+'
LETTERS = [regex_grammar.byte_texts().index(letter) for letter in "abcdef"]
PROMPT = "abcabcabcabc the quick brown fox"
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 1.3, "top_p": 0.95, "seed": 5},
    "choices": {"temperature": 1.3, "n": 3, "seed": 6, "logprobs": 1},
    "penalties": {"temperature": 0.8, "seed": 7, "presence_penalty": 0.9, "repetition_penalty": 1.3},
    "logprobs": {"temperature": 0.9, "seed": 8, "logprobs": 3, "prompt_logprobs": 2},
    "stop": {"temperature": 0.9, "seed": 9, "stop": ["abc", "dd"], "min_tokens": 12, "allowed_token_ids": LETTERS},
    "grammar": {"temperature": 0.9, "seed": 10},
    "bad words": {"temperature": 0.7, "seed": 11, "bad_words": ["a", "e"], "logit_bias": {70: 3.0}},
}


async def compiled(wanted: Any, tenant: str) -> Any:
    """A grammar of the plain backend of regular expressions."""
    return regex_grammar.compiled(wanted.regex)


async def answers(resolution: Any, lives: Sequence[int]) -> tuple[dict[str, RequestOutput], MortalSource]:
    """The last outputs of all cases, and the engines that gave them."""
    from core.api.structured_outputs import StructuredOutputsParams

    config = resolution.engine
    source = MortalSource(config, UniprocExecutor, lives)
    tokenizer = load_shared_tokenizer(resolution.manifest.tokenizer, config)
    assert tokenizer is not None
    engine = mortal_engine(source, tokenizer)
    engine.grammars.compiled = compiled  # type: ignore[assignment]

    async def answer(case: str) -> RequestOutput:
        form = StructuredOutputsParams(regex=PATTERN) if case == "grammar" else None
        params = SamplingParams(max_tokens=40, ignore_eos=True, structured_outputs=form, **CASES[case])
        terms = RequestTerms(explain=ExplainTerms())
        async for output in engine.generate(PROMPT, params, case, terms):
            last = output
        return last

    try:
        async with asyncio.timeout(60):
            found = await asyncio.gather(*map(answer, CASES))
            await engine.check_integrity()
    finally:
        await engine.close()
    return dict(zip(CASES, found, strict=True)), source


def facts(output: RequestOutput) -> Any:
    """Everything that a user gets of an answer."""
    choices = [
        (one.text, one.token_ids, one.finish_reason, one.stop_reason, one.logprobs, one.cumulative_logprob)
        for one in output.outputs
    ]
    prompt = None if output.prompt_logprobs is None else list(output.prompt_logprobs)
    return choices, prompt, output.num_cached_tokens, output.metrics.num_generation_tokens


NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
VARIANTS: dict[str, tuple[dict[str, Any], list[list[int]]]] = {
    "plain": ({}, [[7, 3, 12]]),
    "at once, and late": ({}, [[1], [11]]),
    "drafts": ({"speculative_config": NGRAM}, [[9, 4]]),
    "planned ahead": ({"async_scheduling": True}, [[10, 7]]),
    "drafts planned ahead": ({"async_scheduling": True, "speculative_config": NGRAM}, [[9, 4]]),
}


SLOW = {"at once, and late", "drafts", "planned ahead", "drafts planned ahead"}


@pytest.mark.parametrize(
    "variant", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in VARIANTS]
)
def test_every_kind_of_request_goes_on_to_the_bit(
    variant: str, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    regex_grammar.install(monkeypatch)
    more, all_lives = VARIANTS[variant]
    goes_on_to_the_bit(settings(tiny_llama, **more), all_lives)


@pytest.mark.parametrize("method", ["draft_model", pytest.param("eagle3", marks=pytest.mark.slow)])
def test_drafts_with_a_cache_go_on_to_the_bit(
    method: str, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    regex_grammar.install(monkeypatch)
    if method == "draft_model":
        draft = save_checkpoint(tmp_path / "draft", seed=3, num_hidden_layers=1)
    else:
        target = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).eval()
        draft, _ = save_eagle3(tmp_path / "draft", target)
    drafts = {"method": method, "model": str(draft), "num_speculative_tokens": 3, "adaptive": False}
    goes_on_to_the_bit(settings(tiny_llama, async_scheduling=True, speculative_config=drafts), [[9, 4]])


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_heads_of_families_go_on_to_the_bit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    regex_grammar.install(monkeypatch)
    proposer, _ = drafting_model(name, tmp_path)
    drafts = proposer.config(adaptive=False)
    resolution = settings(proposer.target, async_scheduling=True, speculative_config=drafts)
    undisturbed, _ = asyncio.run(answers(resolution, []))
    found, source = asyncio.run(answers(resolution, [9, 4]))
    assert len(source.clients) == 3
    for case, output in found.items():
        assert facts(output) == facts(undisturbed[case]), case


def goes_on_to_the_bit(resolution: Any, all_lives: list[list[int]]) -> None:
    """Answers through the deaths of engines are those without. all_lives: steps of each engine, for each run."""
    undisturbed, _ = asyncio.run(answers(resolution, []))
    assert undisturbed["stop"].outputs[0].finish_reason == "stop"
    assert undisturbed["grammar"].outputs[0].text.startswith('{"name": "')
    for lives in all_lives:
        found, source = asyncio.run(answers(resolution, lives))
        assert len(source.clients) == 1 + len(lives), lives
        for case, output in found.items():
            assert facts(output) == facts(undisturbed[case]), (case, lives)
            explained = output.explain
            assert explained is not None
            assert explained.preemptions == 0
            assert explained.cache == undisturbed[case].explain.cache  # type: ignore[union-attr]


def dies_of(name: str, cause: str = "crash") -> Deadly:
    """Engines that die when they compute this request's third step, or any later one."""
    return lambda step, live: cause if any(one.request_id == name for one in live) and step >= 3 else None


@pytest.mark.parametrize(("cause", "most"), [("crash", 6), ("killed", 8)])
def test_the_request_that_engines_die_of_ends_alone(cause: str, most: int) -> None:
    async def use(engine: AsyncEngine, source: MortalSource) -> None:
        async def poison() -> RequestOutput:
            async for output in engine.generate([9, 9], SamplingParams(max_tokens=50), "poison"):
                last = output
            return last

        streams = [engine.generate([i, 1, 2], delta(max_tokens=40), f"r{i}") for i in range(7)]
        last, *found = await asyncio.gather(poison(), *map(tokens_of, streams))
        assert found == [reference([i, 1, 2], 40) for i in range(7)]
        assert last.finished and last.outputs[0].finish_reason == "error"
        assert f"alone at last (cause: {cause})" in str(last.outputs[0].stop_reason)
        assert len(source.clients) - 1 <= most
        late = await tokens_of(engine.generate([5], delta(max_tokens=5), "late"))
        assert late == reference([5], 5)

    with_fakes(use, deadly=dies_of("poison", cause))


def test_two_of_them_end_and_nobody_else() -> None:
    def deadly(step: int, live: Sequence[EngineRequest]) -> str | None:
        return "wedge" if step > 1 and any(one.prompt_token_ids[0] == 77 for one in live) else None

    async def use(engine: AsyncEngine, source: MortalSource) -> None:
        async def end(index: int) -> str | None:
            prompt = [77 if index in (2, 5) else index, 1]
            async for output in engine.generate(prompt, SamplingParams(max_tokens=20), f"r{index}"):
                last = output
            return last.outputs[0].finish_reason

        ends = await asyncio.gather(*map(end, range(8)))
        assert [index for index, reason in enumerate(ends) if reason == "error"] == [2, 5]

    with_fakes(use, deadly=deadly)


FEW = RestartConfig(limit=4)


def dies_of_prompts(first: range) -> Deadly:
    """Engines that die of prompts that begin with one of these tokens, once they have given a token."""

    def deadly(step: int, live: Sequence[EngineRequest]) -> str | None:
        return "crash" if step > 1 and any(one.prompt_token_ids[0] in first for one in live) else None

    return deadly


async def fate(engine: AsyncEngine, prompt: list[int], name: str, **fields: Any) -> str:
    """How a request ends: its finish reason, or the code of the refusal."""
    try:
        async for output in engine.generate(prompt, SamplingParams(max_tokens=8, **fields), name):
            last = output.outputs[0]
    except RequestError as refusal:
        assert refusal.status == KILLER_STATUS
        assert "cause: crash" in str(refusal)
        return str(refusal.code)
    return str(last.finish_reason)


def test_whoever_repeats_a_request_that_engines_die_of_ends_no_server() -> None:
    async def use(engine: AsyncEngine, source: MortalSource) -> None:
        stream = engine.generate([1, 2], delta(max_tokens=60), "innocent")
        innocent = asyncio.ensure_future(tokens_of(stream))
        at_once = [fate(engine, [77, 1], f"twin{index}", seed=index) for index in range(2)]
        assert await asyncio.gather(*at_once) == ["error", "error"], "both end with one verdict"
        assert await tokens_of(engine.generate([5], delta(max_tokens=5), "next")) == reference([5], 5)
        num_deaths = len(source.clients)
        for index in range(28):
            assert await fate(engine, [77, 1], f"killer{index}", stop="x", seed=index) == KILLER_CODE
        assert len(source.clients) == num_deaths, "nobody computes it once more"
        assert await fate(engine, [77, 1], "warmer", temperature=0.5) == "error"
        assert await innocent == reference([1, 2], 60)
        assert await tokens_of(engine.generate([5], delta(max_tokens=5), "late")) == reference([5], 5)

    with_fakes(use, deadly=dies_of_prompts(range(77, 78)), terms=RestartConfig(limit=8))


def test_many_requests_that_engines_die_of_end_no_server() -> None:
    async def use(engine: AsyncEngine, source: MortalSource) -> None:
        for index in range(12):
            streams = [engine.generate([i, 1, 2], delta(max_tokens=40), f"r{i}") for i in range(2)]
            innocent = [asyncio.ensure_future(tokens_of(stream)) for stream in streams]
            assert await fate(engine, [60 + index, 1], f"killer{index}") == "error"
            assert await asyncio.gather(*innocent) == [reference([i, 1, 2], 40) for i in range(2)]
        assert sum(engine.restarts.num_restarts.values()) >= 24

    with_fakes(use, deadly=dies_of_prompts(range(60, 90)), terms=FEW)


def test_an_engine_that_dies_of_every_request_is_given_up() -> None:
    async def use(engine: AsyncEngine, source: MortalSource) -> None:
        found: list[str] = []
        with pytest.raises(EngineDeadError, match="That is enough"):
            for index in range(30):
                found.append(await fate(engine, [index, 1], f"r{index}"))
        assert 3 < len(found) < 10
        assert set(found) == {"error"}

    with_fakes(use, deadly=dies_of_prompts(range(100)), terms=FEW)


def test_a_request_that_was_alone_is_known_after_two_deaths() -> None:
    async def use(engine: AsyncEngine, source: MortalSource) -> None:
        assert await fate(engine, [77, 1], "alone") == "error"
        assert [death.cause for death in engine.restarts.latest] == ["crash", "crash"]

    with_fakes(use, deadly=dies_of_prompts(range(77, 78)))


def test_each_sampling_parameter_makes_a_request_another_one_or_does_not() -> None:
    neutral = {
        "n", "seed", "stop", "stop_token_ids", "ignore_eos", "max_tokens", "detokenize", "skip_special_tokens", "output_kind",
        "spaces_between_special_tokens", "include_stop_str_in_output", "truncate_prompt_tokens",
    }  # fmt: skip
    assert neutral | set(MATTERS) == set(SamplingParams.__struct_fields__)
    assert not neutral & set(MATTERS)


def test_an_equal_prompt_with_another_grammar_or_other_tokens_is_another_request() -> None:
    deadly = EngineRequest("a", 0, [1, 2], SamplingParams(), 0, grammar=CompiledGrammar("x", "key", b"data"))
    killers = Denylist()
    killers.add(deadly, "crash")
    assert killers.is_known(replace(deadly, request_id="b", seed=3))
    for other in ({"grammar": None}, {"grammar": CompiledGrammar("x", "other", b"")}, {"allowed_ids": b"12345678"}):
        assert not killers.is_known(replace(deadly, **other)), other


def test_deaths_by_chance_are_nobodys_fault() -> None:
    """A single request, alone in every step that was killed from outside; it gets on in between, if only a little."""

    async def use(engine: AsyncEngine, source: MortalSource) -> None:
        assert await tokens_of(engine.generate([1, 2], delta(max_tokens=60), "a")) == reference([1, 2], 60)
        assert engine.restarts.num_restarts["killed"] == 11

    with_fakes(use, [2, 1, 1, 5, 5, 2, 1, 6, 5, 5, 7])


@asynccontextmanager
async def pause(engine: AsyncEngine, source: MortalSource) -> AsyncIterator[None]:
    """The engine is dead, and the next one does not come before the end of the block."""
    source.gate.clear()
    source.clients[-1].die("crash")
    await asyncio.sleep(0.01)
    try:
        yield
    finally:
        source.gate.set()


def test_what_comes_and_goes_during_a_pause() -> None:
    async def use(engine: AsyncEngine, source: MortalSource) -> None:
        kept = engine.generate([1, 2], delta(max_tokens=50), "kept")
        aborted = engine.generate([3], delta(max_tokens=50), "aborted")
        late = engine.generate([4], delta(max_tokens=50), "late", RequestTerms(timeout_s=0.05))
        short = engine.generate([5], delta(max_tokens=20), "short")
        begun = {stream: (await anext(stream)).outputs[0].token_ids for stream in (kept, aborted, late, short)}
        async with pause(engine, source):
            await engine.check_health()
            assert engine.stats.num_waiting == 4
            await engine.abort("aborted")
            rest = [output async for output in aborted]
            assert rest[-1].outputs[0].finish_reason == "abort"
            again = asyncio.ensure_future(tokens_of(engine.generate([6], delta(max_tokens=30), "aborted")))
            left = engine.generate([7], delta(max_tokens=9), "left")
            waiting = asyncio.ensure_future(anext(left))
            ends = [output.outputs[0] async for output in late]
            assert ends[-1].finish_reason == "timeout"
            assert "is being started again" in str(ends[-1].stop_reason)
            with pytest.raises(EngineStalledError, match="started again"):
                await engine.reset_prefix_cache()
            with pytest.raises(RequestError, match="in use"):
                await anext(engine.generate([1], SamplingParams(), "kept"))
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        assert begun[kept] + await tokens_of(kept) == reference([1, 2], 50)
        assert begun[short] + await tokens_of(short) == reference([5], 20)
        assert await again == reference([6], 30)
        assert source.clients[-1].received == ["short", "aborted", "kept"], "fewest missing tokens first"
        assert len(engine.queue) == 0

    with_fakes(use)


def test_a_request_that_cannot_be_sent_after_a_pause_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(engine: AsyncEngine, source: MortalSource) -> None:
        kept = engine.generate([1, 2], delta(max_tokens=50), "kept")
        begun = (await anext(kept)).outputs[0].token_ids
        async with pause(engine, source):
            wrong = asyncio.ensure_future(anext(engine.generate([6], SamplingParams(top_k=7), "wrong")))
            await asyncio.sleep(0)
        with pytest.raises(RequestError, match="too large"):
            await wrong
        assert begun + await tokens_of(kept) == reference([1, 2], 50)

    whole = MortalClient.add

    async def add(self: MortalClient, requests: Sequence[EngineRequest]) -> None:
        if requests[0].params.top_k == 7:
            raise RequestError("too large for any message")
        await whole(self, requests)

    monkeypatch.setattr(MortalClient, "add", add)
    with_fakes(use)


def test_counters_go_on() -> None:
    async def use(engine: AsyncEngine, source: MortalSource) -> None:
        for name in ("a", "b"):
            await tokens_of(engine.generate(list(range(20)), delta(max_tokens=3), name))
        before = engine.stats
        assert before.prefix_queries > before.prefix_hits > 0
        async with pause(engine, source):
            assert engine.stats.prefix_hits == before.prefix_hits
        await tokens_of(engine.generate(list(range(20)), delta(max_tokens=3), "c"))
        assert engine.stats.prefix_queries > before.prefix_queries
        assert engine.stats.prefix_hits == before.prefix_hits

    with_fakes(use)


def test_an_engine_that_computes_otherwise_goes_on_with_nothing() -> None:
    async def use(engine: AsyncEngine, source: MortalSource) -> None:
        stream = engine.generate([1], delta(max_tokens=50), "a")
        await anext(stream)
        async with pause(engine, source):
            source.make_executor = type("Other", (FakeExecutor,), {"numerics": "other"})
        with pytest.raises(EngineDeadError, match=r"another numerics .'other', it was 'fake'"):
            await tokens_of(stream)
        assert not engine.is_running

    with_fakes(use)


def test_when_there_is_no_further_engine_everybody_is_told() -> None:
    async def use(engine: AsyncEngine, source: MortalSource) -> None:
        told: list[EngineDeadError] = []
        engine.on_death = told.append
        source.reviver = Reviver(RestartConfig(limit=0))
        running = engine.generate([1], delta(max_tokens=50), "running")
        await anext(running)
        async with pause(engine, source):
            waiting = asyncio.ensure_future(anext(engine.generate([2], delta(), "waiting")))
            await asyncio.sleep(0)
        for end in (
            tokens_of(running),
            waiting,
            tokens_of(engine.generate([3], delta(), "late")),
            engine.check_health(),
        ):
            with pytest.raises(EngineDeadError, match=r"died of crash\. That is enough"):
                await end
        assert told == [engine.dead_error]

    with_fakes(use)


def test_a_source_that_is_broken_keeps_nobody_waiting() -> None:
    async def use(engine: AsyncEngine, source: MortalSource) -> None:
        source.reviver = None  # type: ignore[assignment]
        stream = engine.generate([1], delta(max_tokens=50), "a")
        await anext(stream)
        async with pause(engine, source):
            pass
        with pytest.raises(EngineDeadError, match=r"(?s)died of crash.*could not be replaced .AttributeError"):
            await tokens_of(stream)

    with_fakes(use)


def test_a_pause_that_lasts_too_long_is_a_fault_and_may_be_left() -> None:
    async def use(engine: AsyncEngine, source: MortalSource) -> None:
        stream = engine.generate([1], delta(max_tokens=50), "a")
        await anext(stream)
        async with pause(engine, source):
            engine.restarts.paused_since = time.monotonic() - 121.0
            with pytest.raises(EngineStalledError, match="for 121 s no other"):
                await engine.check_health()
            await engine.close()
            with pytest.raises(EngineDeadError, match="was closed"):
                await tokens_of(stream)

    with_fakes(use)
