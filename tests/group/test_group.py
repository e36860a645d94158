"""Several engines as one: the same answers, whatever happens to one of them."""

import asyncio
import os
import signal
import time
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from fakes import CRASH, TARGET, make_config, make_resolution, reference

from core.api.config import RestartConfig
from core.api.errors import EngineStalledError, RequestError, UtilityError
from core.api.sampling_params import SamplingParams
from core_frontend.async_engine import AsyncEngine
from core_frontend.group.client import GroupClient

PROMPTS = [[number, 2, 3] for number in range(1, 9)]
RESTARTS = RestartConfig(backoff_s=0.05)


@asynccontextmanager
async def group(restarts: RestartConfig = RESTARTS, **options: Any) -> AsyncIterator[AsyncEngine]:
    config = make_config(options={"delay_s": 0.005, **options}, max_model_len=256, restarts=restarts)
    config = msgspec.structs.replace(config, data_parallel_size=2)
    engine = await AsyncEngine.start(make_resolution(config), executor=TARGET)
    try:
        async with asyncio.timeout(40):
            yield engine
    finally:
        await engine.close()


def client_of(engine: AsyncEngine) -> GroupClient:
    client = engine._client
    assert isinstance(client, GroupClient)
    return client


async def answer(engine: AsyncEngine, prompt: list[int], count: int = 60) -> list[int]:
    tokens: list[int] = []
    name = f"r{prompt}-{time.monotonic_ns()}"
    params = SamplingParams(max_tokens=count, ignore_eos=True)
    async for output in engine.generate({"prompt_token_ids": prompt}, params, name):
        tokens = list(output.outputs[0].token_ids)
    return tokens


def asked(engine: AsyncEngine, count: int = 60) -> list[asyncio.Task[list[int]]]:
    return [asyncio.create_task(answer(engine, prompt, count)) for prompt in PROMPTS]


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


def states(engine: AsyncEngine) -> list[str]:
    return [each.state for each in engine.engines]


async def test_streams_of_a_killed_engine_go_on_in_the_other_at_once() -> None:
    async with group() as engine:
        answers = asked(engine)
        await until(lambda: [each.num_running for each in engine.engines] == [4, 4])
        assert engine.stats.num_running == 8
        os.kill(client_of(engine).members[1].client.pid, signal.SIGKILL)
        await until(lambda: states(engine)[1] == "restarting")
        with pytest.raises(EngineStalledError, match="Engine 1 of 2 died"):
            await engine.control.pause()
        await engine.check_health()
        assert engine.restarts.paused_since is None
        await asyncio.gather(*answers)
        assert [task.result() for task in answers] == [reference(prompt, 60) for prompt in PROMPTS]
        await until(lambda: states(engine) == ["running", "running"])
        assert engine.restarts.num_restarts["killed"] == 1
        before = [stats.prefix_queries for stats in engine.stats_of_engines]
        assert await asyncio.gather(*asked(engine, 20)) == [reference(prompt, 20) for prompt in PROMPTS]
        after = [stats.prefix_queries for stats in engine.stats_of_engines]
        assert all(new > old for new, old in zip(after, before, strict=True)), "the next engine has its share"


async def test_a_request_of_which_engines_die_ends_alone() -> None:
    async with group() as engine:
        answers = asked(engine)
        await asyncio.sleep(0.1)
        params = SamplingParams(max_tokens=5)
        async for output in engine.generate({"prompt_token_ids": [CRASH, 5]}, params, "poison"):
            last = output.outputs[0]
        assert last.finish_reason == "error" and "died again and again" in str(last.stop_reason)
        assert await asyncio.gather(*answers) == [reference(prompt, 60) for prompt in PROMPTS]
        await until(lambda: states(engine) == ["running", "running"])
        assert await answer(engine, [3, 4]) == reference([3, 4], 60)


async def test_without_an_engine_the_other_one_serves_and_health_tells() -> None:
    async with group(RestartConfig(limit=0)) as engine:
        answers = asked(engine)
        await asyncio.sleep(0.1)
        os.kill(engine.pid, signal.SIGKILL)
        assert await asyncio.gather(*answers) == [reference(prompt, 60) for prompt in PROMPTS]
        assert states(engine) == ["gone", "running"]
        assert engine.engines[0].cause == "killed"
        await engine.check_health()
        await engine.control.pause("keep")
        assert engine.stats.is_paused
        await engine.control.resume()
        os.kill(engine.pid, signal.SIGKILL)
        await until(lambda: engine.dead_error is not None)


async def test_calls_reach_all_engines_and_the_next_one_follows() -> None:
    async with group() as engine:
        members = client_of(engine).members
        await engine.control.pause("keep")
        waiting = asked(engine, 10)
        os.kill(members[0].client.pid, signal.SIGKILL)
        await until(lambda: states(engine)[0] == "restarting")
        await until(lambda: states(engine)[0] == "running")
        for member in members:
            assert (await member.client.call("lifecycle"))["is_paused"]
        assert not any(task.done() for task in waiting)
        await engine.control.resume()
        assert await asyncio.gather(*waiting) == [reference(prompt, 10) for prompt in PROMPTS]
        await engine.control.pause("wait")
        assert (await engine.control.state())["is_halted"]
        await engine.control.resume()
        assert await engine.reset_prefix_cache()
        with pytest.raises(RequestError):
            await engine.control.call("no_such_call")
        assert states(engine) == ["running", "running"], "what the first engine refuses reaches none"


async def test_an_engine_that_refuses_what_the_first_one_did_is_started_again_and_follows() -> None:
    async with group() as engine:
        second = client_of(engine).members[1]
        client = second.client
        whole = client.call

        async def refusing(method: str, arguments: Any = None) -> Any:
            if method == "pause":
                raise UtilityError("No room.")
            return await whole(method, arguments)

        client.call = refusing  # type: ignore[method-assign]
        await engine.control.pause("keep")
        await until(lambda: second.state == "restarting")
        await until(lambda: second.state == "running")
        assert second.client is not client
        assert (await second.client.call("lifecycle"))["is_paused"]


async def test_a_prefix_is_pinned_in_the_engine_that_has_it() -> None:
    async with group() as engine:
        members = client_of(engine).members
        session = PROMPTS[0] * 20
        tokens = await answer(engine, session, 8)
        assert tokens == reference(session, 8)
        used = [stats.prefix_queries > 0 for stats in engine.stats_of_engines]
        assert sorted(used) == [False, True]
        home = used.index(True)
        prefix = {"tokens": array("i", session).tobytes(), "lengths": [len(session)]}
        pin = {"server": "s", "name": "n", "prefix": prefix, "share": 0.9, "lifetime": 60.0}
        answer_of_pin = await engine.control.call("pin_prefix", **pin)
        assert answer_of_pin["fits"]
        pins = [await member.client.call("num_pins") for member in members]
        assert [count for count, _ in pins] == [int(index == home) for index in range(2)]
        assert (await engine.control.call("num_pins"))[0] == 1
        place = await engine.control.call("prefix_places", server="s", name="n", prefix=prefix)
        assert set(place["places"]) >= {"pool"}
        assert await engine.control.call("unpin_prefix", server="s", name="n", tenant="")
        assert (await engine.control.call("num_pins"))[0] == 0


async def test_turns_of_a_conversation_stay_where_its_beginning_is() -> None:
    async with group(delay_s=0.0) as engine:
        history = [[5 + turn, *range(40)] for turn in range(4)]
        for turn in range(3):
            for index, tokens in enumerate(history):
                new = await answer(engine, tokens, 4)
                assert new == reference(tokens, 4)
                history[index] = [*tokens, *new, *range(30 + turn)]
        queries = [stats.prefix_queries for stats in engine.stats_of_engines]
        hits = engine.stats.prefix_hits
        assert min(queries) > 0
        later = sum(queries) - 4 * 41
        assert hits > 0.6 * later, "each turn finds the one before"
