"""Engines die while requests run: every answer is the one of an engine that never died, to the bit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes import KILL, FakeExecutor, byte_source, make_config, reference
from mortal import Deadly, MortalSource, mortal_engine

from core.api.config import EngineConfig
from core.api.errors import EngineDeadError, EngineStalledError, RequestError
from core.api.messages import EngineRequest
from core.api.outputs import RequestOutput
from core.api.sampling_params import RequestOutputKind, SamplingParams
from core.config.resolve import resolve
from core.engine.async_engine import AsyncEngine
from core.engine.request_terms import ExplainTerms, RequestTerms
from core.engine.tokenizing import load_shared_tokenizer
from core.executor.uniproc import UniprocExecutor
from core.tokens.tokenizer import Tokenizer
from tests.executor import regex_grammar

Use = Callable[[AsyncEngine, MortalSource], Awaitable[None]]


def tokenizer_of(config: EngineConfig) -> Tokenizer:
    tokenizer = load_shared_tokenizer(byte_source(), config.model)
    assert tokenizer is not None
    return tokenizer


def with_fakes(use: Use, lives: Sequence[int] = (), deadly: Deadly = lambda step, live: None, **options: Any) -> None:
    async def run() -> None:
        config = make_config(options=options)
        source = MortalSource(config, FakeExecutor, lives, deadly)
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
        assert engine.restarts.num_restarts == {"killed": 6}

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


class Compiled:
    """Grammars of the plain backend of regular expressions."""

    async def compiled(self, wanted: Any) -> Any:
        return regex_grammar.compiled(wanted.regex)

    def close(self) -> None:
        pass


async def answers(resolution: Any, lives: Sequence[int]) -> tuple[dict[str, RequestOutput], MortalSource]:
    """The last outputs of all cases, and the engines that gave them."""
    from core.api.structured_outputs import StructuredOutputsParams

    config = resolution.engine
    source = MortalSource(config, UniprocExecutor, lives)
    tokenizer = load_shared_tokenizer(resolution.manifest.tokenizer, config.model)
    assert tokenizer is not None
    engine = mortal_engine(source, tokenizer)
    engine.grammars.close()
    engine.grammars = Compiled()  # type: ignore[assignment]

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
    "plain": ({}, [[1], [2], [11], [30], [7, 3, 12]]),
    "drafts": ({"speculative_config": NGRAM}, [[6], [9, 4]]),
    "planned ahead": ({"async_scheduling": True}, [[10, 7]]),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_kind_of_request_goes_on_to_the_bit(
    variant: str, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    regex_grammar.install(monkeypatch)
    more, all_lives = VARIANTS[variant]
    resolution = settings(tiny_llama, **more)
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
