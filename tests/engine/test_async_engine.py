"""The engine as the server sees it: streams, early ends, death and health, with a real engine process."""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import KILL, TARGET, make_config, make_resolution, reference

from core.api.errors import EngineDeadError, RequestError, UserError
from core.api.messages import EngineOutputs
from core.api.sampling_params import RequestOutputKind, SamplingParams
from core.api.structured_outputs import StructuredOutputsParams
from core_frontend.api.outputs import RequestOutput
from core_frontend.async_engine import AsyncEngine
from core_frontend.intake import LONG_TEXT
from core_frontend.request_terms import RequestTerms
from core_runtime.specs.checkpoint import TokenizerSource
from tests.torch_free import run_torch_free


@asynccontextmanager
async def running(max_model_len: int = 64, **options: Any) -> AsyncIterator[AsyncEngine]:
    config = make_config(options=options, max_model_len=max_model_len)
    engine = await AsyncEngine.start(make_resolution(config), executor=TARGET)
    try:
        yield engine
    finally:
        await engine.close()


def with_engine(test: Callable[[AsyncEngine], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        async with running(**options) as engine, asyncio.timeout(20):
            await test(engine)

    asyncio.run(run())


async def never_compiled(params: object, tenant: str) -> None:
    await asyncio.sleep(60)


def test_a_grammar_is_waited_for_in_the_queue_until_the_deadline() -> None:
    async def test(engine: AsyncEngine) -> None:
        engine.grammars.compiled = never_compiled  # type: ignore[assignment,method-assign]
        asked = delta(max_tokens=3, structured_outputs=StructuredOutputsParams(regex="a"))
        stream = engine.generate([1, 2], asked, "r", RequestTerms(timeout_s=0.2))
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.05)
        assert len(engine.queue) == 1
        with pytest.raises(RequestError, match="structured_outputs were compiled") as caught:
            await first
        assert (caught.value.status, caught.value.code) == (408, "request_timeout")
        assert len(engine.queue) == 0 and engine.stats.num_timeouts == 1
        await until_idle(engine)

    with_engine(test)


async def until_idle(engine: AsyncEngine) -> None:
    """Waits until nothing runs; a small request makes the engine report its state."""
    async with asyncio.timeout(10):
        while True:
            async for _ in engine.generate([1], SamplingParams(max_tokens=1), f"probe-{time.monotonic_ns()}"):
                pass
            if engine.stats.num_running == 0:
                break
    await engine.check_integrity()
    assert engine.stats.kv_cache_usage == 0.0


def delta(**fields: Any) -> SamplingParams:
    return SamplingParams(output_kind=RequestOutputKind.DELTA, **fields)


def test_streams_in_company() -> None:
    async def test(engine: AsyncEngine) -> None:
        async def collect(index: int) -> list[int]:
            tokens: list[int] = []
            last: RequestOutput | None = None
            async for output in engine.generate([index, 1, 2], delta(max_tokens=9), f"r{index}"):
                tokens += output.outputs[0].token_ids
                last = output
            assert last is not None
            assert last.finished
            return tokens

        found = await asyncio.gather(*(collect(index) for index in range(20)))
        assert found == [reference([index, 1, 2], 9) for index in range(20)]
        await until_idle(engine)

    with_engine(test)


def test_text_choices_and_stop_strings() -> None:
    async def test(engine: AsyncEngine) -> None:
        outputs = [output async for output in engine.generate("Q:", SamplingParams(n=3, stop="wor"), "a")]
        assert [one.text for one in outputs[-1].outputs] == ["hello "] * 3
        assert {one.stop_reason for one in outputs[-1].outputs} == {"wor"}
        await until_idle(engine)
        outputs = [output async for output in engine.generate("Q:", delta(max_tokens=None), "b")]
        assert "".join(output.outputs[0].text for output in outputs) == "hello world"
        assert outputs[-1].outputs[0].finish_reason == "stop"

    with_engine(test, script="hello world", delay_s=0.002)


def test_leaving_early_aborts() -> None:
    computed: Counter[str] = Counter()

    def count(_: object, message: EngineOutputs) -> None:
        for output in message.outputs:
            computed[output.request_id] += len(output.token_ids)

    async def test(engine: AsyncEngine) -> None:
        engine.on_outputs = count
        stream = engine.generate([1], delta(max_tokens=60), "left")
        await anext(stream)
        await stream.aclose()

        async def listen() -> None:
            async for _ in engine.generate([2], delta(max_tokens=60), "cancelled"):
                pass

        task = asyncio.create_task(listen())
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until_idle(engine)
        assert 0 < computed["left"] < 60, "it ended by itself rather than by the abort"
        assert 0 < computed["cancelled"] < 60

    with_engine(test, delay_s=0.02)


def test_abort_by_id() -> None:
    async def test(engine: AsyncEngine) -> None:
        outputs = []
        async for output in engine.generate([1], SamplingParams(max_tokens=60), "a"):
            outputs.append(output)
            if len(outputs) == 2:
                await engine.abort("a")
        await engine.abort("unknown")
        assert outputs[-1].finished
        assert outputs[-1].outputs[0].finish_reason == "abort"
        assert outputs[-1].outputs[0].token_ids == reference([1], len(outputs[-1].outputs[0].token_ids))
        await until_idle(engine)

    with_engine(test, delay_s=0.01)


def test_an_id_may_be_used_again_at_once() -> None:
    async def test(engine: AsyncEngine) -> None:
        for prompt in range(12):
            left = engine.generate([prompt, 7], delta(max_tokens=60, logprobs=1), "same")
            for _ in range(prompt % 4 + 1):
                await anext(left)
            await left.aclose()
            outputs = [output async for output in engine.generate([prompt], SamplingParams(max_tokens=4), "same")]
            assert outputs[-1].outputs[0].token_ids == reference([prompt], 4)
        await until_idle(engine)

    with_engine(test, delay_s=0.002)


def test_an_id_may_be_used_again_after_a_stop_string() -> None:
    async def test(engine: AsyncEngine) -> None:
        for _ in range(5):
            outputs = [output async for output in engine.generate("Q:", SamplingParams(n=2, stop="l"), "same")]
            assert [one.text for one in outputs[-1].outputs] == ["he"] * 2
        await until_idle(engine)

    with_engine(test, script="hello world", delay_s=0.002)


def test_wrong_requests_leave_nothing() -> None:
    async def test(engine: AsyncEngine) -> None:
        wrong: list[tuple[Any, SamplingParams]] = [
            ("", SamplingParams()),
            ([9999], SamplingParams()),
            ("abc", SamplingParams(max_tokens=62)),
            ("x" * 70, SamplingParams()),
            ("abc", SamplingParams(top_k=2**70)),
        ]
        for prompt, params in wrong:
            with pytest.raises(RequestError):
                await anext(engine.generate(prompt, params, "a"))
        relaxed = [o async for o in engine.generate("abc", SamplingParams(max_tokens=99), "a", RequestTerms())]
        assert len(relaxed[-1].outputs[0].token_ids) == 61
        first = engine.generate([1], delta(max_tokens=50), "same")
        await anext(first)
        with pytest.raises(RequestError, match="in use"):
            await anext(engine.generate([1], SamplingParams(), "same"))
        await first.aclose()
        await until_idle(engine)

    with_engine(test)


def test_long_texts() -> None:
    async def test(engine: AsyncEngine) -> None:
        text = "a" * (LONG_TEXT + 5)
        for prompt in (text, {"prompt": text}):
            outputs = [output async for output in engine.generate(prompt, SamplingParams(max_tokens=2), "a")]
            assert outputs[-1].prompt == text
            assert outputs[-1].outputs[0].token_ids == reference(list(text.encode()), 2)

    with_engine(test, max_model_len=5000, num_blocks=1500)


def test_metrics_hook_sees_every_token_and_cannot_harm(caplog: pytest.LogCaptureFixture) -> None:
    async def test(engine: AsyncEngine) -> None:
        seen: list[int] = []

        def hook(outputs: list[RequestOutput], message: EngineOutputs) -> None:
            seen.extend(token for output in message.outputs for token in output.token_ids)
            raise ZeroDivisionError("a broken hook")

        engine.on_outputs = hook
        async for _ in engine.generate([1], SamplingParams(max_tokens=5), "a"):
            pass
        assert seen == reference([1], 5)
        assert engine.is_running

    with_engine(test)


def test_death_reaches_every_stream() -> None:
    async def test(engine: AsyncEngine) -> None:
        told: list[EngineDeadError] = []
        engine.on_death = told.append
        streams = [engine.generate([index], delta(max_tokens=60), f"r{index}") for index in range(4)]
        for stream in streams:
            await anext(stream)
        waiting = [asyncio.create_task(read_on(stream)) for stream in streams]
        os.kill(engine.pid, signal.SIGKILL)
        ends = await asyncio.wait_for(asyncio.gather(*waiting), 60)
        assert all("SIGKILL" in str(end) for end in ends)
        assert not engine.is_running
        assert told == [engine.dead_error]
        with pytest.raises(EngineDeadError):
            await engine.check_health()
        with pytest.raises(EngineDeadError):
            await anext(engine.generate([1], SamplingParams(), "late"))

    async def read_on(stream: AsyncIterator[RequestOutput]) -> EngineDeadError | None:
        try:
            async for _ in stream:
                pass
        except EngineDeadError as error:
            return error
        return None

    with_engine(test, delay_s=0.02)


async def test_utilities_and_closing() -> None:
    async with running(delay_s=0.01) as engine:
        await engine.check_health()
        assert engine.is_running
        assert await engine.reset_prefix_cache()
        assert engine.ready.num_blocks == 64
        stream = engine.generate([1], delta(max_tokens=60), "a")
        await anext(stream)
        await engine.close()
        with pytest.raises(EngineDeadError, match="closed"):
            async for _ in stream:
                pass
        assert not engine.is_running


async def test_failed_start_is_told() -> None:
    with pytest.raises(UserError, match="too large"):
        async with running(refuse="too large"):
            pass
    no_tokenizer = SimpleNamespace(engine=make_config(), manifest=SimpleNamespace(tokenizer=TokenizerSource()))
    with pytest.raises(UserError, match="no tokenizer"):
        await AsyncEngine.start(no_tokenizer, executor=TARGET)  # type: ignore[arg-type]
    missing = TokenizerSource(directory="/nowhere")
    broken = SimpleNamespace(engine=make_config(options={"start_s": 3600}), manifest=SimpleNamespace(tokenizer=missing))
    with pytest.raises(UserError, match="nowhere"):  # long before the engine, which needs an hour, is ready
        await AsyncEngine.start(broken, executor=TARGET)  # type: ignore[arg-type]


def test_a_crashing_request_takes_its_engine_but_not_the_server() -> None:
    async def test(engine: AsyncEngine) -> None:
        with pytest.raises(EngineDeadError):
            async for _ in engine.generate([KILL], SamplingParams(), "a"):
                pass

    with_engine(test)


def test_the_servers_side_imports_no_torch() -> None:
    run_torch_free("import core, core_frontend.async_engine; print(core.__version__)")
