"""An engine process that is stopped: what requests with a deadline and whoever asks for its health are told."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
from fakes import TARGET, make_config, make_resolution, reference

from core.api.errors import EngineStalledError
from core.api.sampling_params import RequestOutputKind, SamplingParams
from core_frontend import deadlines
from core_frontend.async_engine import AsyncEngine
from core_frontend.request_terms import RequestTerms


@asynccontextmanager
async def running(stall_timeout_s: float = 120.0) -> AsyncIterator[AsyncEngine]:
    config = make_config(options={"delay_s": 0.005}, stall_timeout_s=stall_timeout_s)
    async with asyncio.timeout(30):
        engine = await AsyncEngine.start(make_resolution(config), executor=TARGET)
        try:
            yield engine
        finally:
            await engine.close()


@contextmanager
def stopped(engine: AsyncEngine) -> Iterator[None]:
    os.kill(engine.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(engine.pid, signal.SIGCONT)


async def until_healthy(engine: AsyncEngine, *, healthy: bool) -> str:
    """Ask for its health as a probe would; returns what was said last."""
    while True:
        try:
            await engine.check_health()
            said = ""
        except EngineStalledError as error:
            said = str(error)
        if healthy is not bool(said):
            return said
        await asyncio.sleep(0.02)


async def test_deadlines_hold_while_the_engine_hangs() -> None:
    async with running(stall_timeout_s=0.3) as engine:
        params = SamplingParams(n=2, max_tokens=60, output_kind=RequestOutputKind.DELTA)
        begun = engine.generate([1, 2], params, "begun", RequestTerms(timeout_s=0.5))
        await anext(begun)
        with stopped(engine):
            late = engine.generate([1, 2], params, "late", RequestTerms(timeout_s=0.2))
            for stream in (begun, late):
                async for output in stream:
                    last = output
                assert [one.finish_reason for one in last.outputs] == ["timeout"] * 2
                assert "time was up" in str(last.outputs[0].stop_reason)
            with pytest.raises(EngineStalledError, match="no requests wait"):
                await engine.check_health()
        assert engine.stats.num_timeouts == 2
        outputs = [output async for output in engine.generate([3], SamplingParams(max_tokens=4), "late")]
        assert outputs[-1].outputs[0].token_ids == reference([3], 4)
        assert engine.stats.num_timeouts >= 2
        await engine.check_integrity()


async def test_the_engines_own_word_on_a_deadline_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "DEADLINE_GRACE_S", 15.0)
    async with running() as engine:
        params = SamplingParams(max_tokens=60)
        outputs = [output async for output in engine.generate([1], params, "a", RequestTerms(timeout_s=0.05))]
        (last,) = outputs[-1].outputs
        assert last.finish_reason == "timeout"
        assert f"with {len(last.token_ids)} tokens generated" in str(last.stop_reason)
        assert engine.stats.num_timeouts == 1


@pytest.mark.parametrize("busy", [False, True])
async def test_a_stopped_engine_is_unhealthy_until_it_goes_on(busy: bool) -> None:
    async with running(stall_timeout_s=0.4) as engine:
        stream = engine.generate([1], SamplingParams(max_tokens=60), "a")
        if busy:
            await anext(stream)
        await engine.check_health()
        with stopped(engine):
            said = await until_healthy(engine, healthy=False)
            assert ("1 request waits" if busy else "no requests wait") in said
            assert "--engine-stall-timeout" in said
            with pytest.raises(EngineStalledError, match="did not answer within"):
                await engine.reset_prefix_cache()
        await until_healthy(engine, healthy=True)
        assert len([output async for output in stream][-1].outputs[0].token_ids) == 60


async def test_an_engine_that_owes_nothing_is_not_silent() -> None:
    async with running(stall_timeout_s=0.3) as engine:
        for _ in range(2):
            await asyncio.sleep(0.4)
            await engine.check_health()
        with stopped(engine):
            stream = engine.generate([1], SamplingParams(), "a")
            waiting = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            await engine.check_health()
            waiting.cancel()
        await until_healthy(engine, healthy=True)
