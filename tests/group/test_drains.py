"""Engines of a group that an operator takes out: their requests go on in the others, whatever happens meanwhile."""

import asyncio
import os
import signal
from typing import Any

import httpx
import pytest
from fakes import reference

from core.api.config import RestartConfig
from core.api.errors import RequestError
from core.api.sampling_params import SamplingParams
from core_apis.app import create_app
from core_config.served.server_config import ServerConfig
from core_frontend.async_engine import AsyncEngine
from core_frontend.group.moves import GroupMoves
from core_frontend.request_terms import ExplainTerms, RequestTerms
from tests.group.test_group import PROMPTS, answer, asked, client_of, group, states, until


def moves_of(engine: AsyncEngine) -> GroupMoves:
    assert engine.moves is not None
    return engine.moves


async def spread(engine: AsyncEngine, count: int = 60) -> list[asyncio.Task[list[int]]]:
    """Requests of which each engine runs some."""
    answers = asked(engine, count)
    await until(lambda: [each.num_running for each in engine.engines] == [4, 4])
    return answers


def expected(count: int = 60) -> list[list[int]]:
    return [reference(prompt, count) for prompt in PROMPTS]


async def test_requests_of_a_drained_engine_go_on_in_the_other_and_new_ones_avoid_it() -> None:
    async with group() as engine:
        moves = moves_of(engine)
        answers = await spread(engine)
        drained = await moves.drain(1)
        assert (drained.engine, drained.moved, drained.computed, drained.stayed) == (1, 0, 4, 0)
        assert states(engine) == ["running", "drained"]
        assert client_of(engine).requests_at(client_of(engine).members[1]) == []
        assert await asyncio.gather(*answers) == expected()
        queries = engine.stats_of_engines[1].prefix_queries
        assert await asyncio.gather(*asked(engine, 10)) == expected(10)
        assert engine.stats_of_engines[1].prefix_queries == queries, "it gets no request"
        await moves.undrain(1)
        assert states(engine) == ["running", "running"]
        assert await asyncio.gather(*asked(engine, 10)) == expected(10)
        assert engine.stats_of_engines[1].prefix_queries > queries
        assert moves.counts["computed"] == 4 and engine.restarts.num_restarts.total() == 0


async def test_the_last_engine_and_unknown_ones_are_refused() -> None:
    async with group() as engine:
        moves = moves_of(engine)
        await moves.drain(0)
        with pytest.raises(RequestError, match="No other engine takes requests") as caught:
            await moves.drain(1)
        assert caught.value.status == 409
        with pytest.raises(RequestError, match="There is no engine 2") as caught:
            await moves.drain(2)
        assert caught.value.status == 404
        assert (await moves.drain(0)).stayed == 0, "asked again"


async def test_a_drained_engine_that_dies_stays_out_and_the_group_outlives_the_other() -> None:
    async with group() as engine:
        members, moves = client_of(engine).members, moves_of(engine)
        answers = await spread(engine)
        await moves.drain(1)
        os.kill(members[1].client.pid, signal.SIGKILL)
        await until(lambda: states(engine)[1] == "restarting")
        await until(lambda: states(engine)[1] == "drained")
        os.kill(members[0].client.pid, signal.SIGKILL)
        await until(lambda: states(engine)[0] == "restarting")
        later = asked(engine, 10)
        assert await asyncio.gather(*answers, *later) == [*expected(), *expected(10)]
        assert states(engine) == ["running", "drained"]


async def test_without_another_engine_a_drained_one_takes_requests_again() -> None:
    async with group(RestartConfig(limit=0)) as engine:
        answers = await spread(engine)
        await moves_of(engine).drain(1)
        os.kill(client_of(engine).members[0].client.pid, signal.SIGKILL)
        assert await asyncio.gather(*answers) == expected()
        assert states(engine) == ["gone", "running"]
        assert await answer(engine, [3, 4], 10) == reference([3, 4], 10)
        await engine.check_health()


async def test_an_engine_is_ended_and_started_again() -> None:
    async with group() as engine:
        members, moves = client_of(engine).members, moves_of(engine)
        answers = await spread(engine)
        pid = members[1].client.pid
        assert (await moves.drain(1, ends=True)).stayed == 0
        assert states(engine) == ["running", "ended"]
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert await asyncio.gather(*answers) == expected()
        await engine.control.pause("keep")
        assert await engine.control.is_paused()
        later = asked(engine, 10)
        await moves.undrain(1)
        assert states(engine) == ["running", "running"] and members[1].client.pid != pid
        assert (await members[1].client.call("lifecycle"))["is_paused"], "it is as the others are"
        await engine.control.resume()
        assert await asyncio.gather(*later) == expected(10)
        assert await asyncio.gather(*asked(engine, 10)) == expected(10)
        assert engine.stats_of_engines[1].prefix_queries > 0
        assert engine.restarts.num_restarts.total() == 0


async def test_an_ended_engine_is_started_when_no_other_is_left() -> None:
    async with group(RestartConfig(limit=0)) as engine:
        answers = await spread(engine)
        await moves_of(engine).drain(1, ends=True)
        os.kill(client_of(engine).members[0].client.pid, signal.SIGKILL)
        assert await asyncio.gather(*answers) == expected()
        assert states(engine) == ["gone", "running"]


@pytest.mark.parametrize("victim", [0, 1])
async def test_deaths_in_the_middle_of_a_drain(victim: int) -> None:
    async with group() as engine:
        answers = await spread(engine)
        drain = asyncio.create_task(moves_of(engine).drain(1))
        await asyncio.sleep(0)
        os.kill(client_of(engine).members[victim].client.pid, signal.SIGKILL)
        await drain
        assert await asyncio.gather(*answers) == expected()
        await until(lambda: states(engine)[0] == "running" and states(engine)[1] != "restarting")
        again = await moves_of(engine).drain(1)
        assert again.stayed == 0 and states(engine) == ["running", "drained"]


async def test_explanations_and_aborts() -> None:
    async with group() as engine:
        params = SamplingParams(max_tokens=60, ignore_eos=True)
        last: dict[str, Any] = {}

        async def explained(prompt: list[int]) -> None:
            terms = RequestTerms(explain=ExplainTerms())
            async for output in engine.generate({"prompt_token_ids": prompt}, params, str(prompt), terms):
                last[str(prompt)] = output

        tasks = [asyncio.create_task(explained(prompt)) for prompt in PROMPTS]
        await until(lambda: [each.num_running for each in engine.engines] == [4, 4])
        gone = client_of(engine).requests_at(client_of(engine).members[1])[0]
        drain = asyncio.create_task(moves_of(engine).drain(1))
        await engine.abort(gone)
        await drain
        await asyncio.gather(*tasks)
        moved = [output.explain.moves for name, output in last.items() if name != gone]
        assert sorted(map(len, moved)) == [0, 0, 0, 0, 1, 1, 1]
        (move,) = next(filter(None, moved))
        assert (move.source, move.target, move.how, move.computing) == (1, 0, "computed", None)
        assert "kv_role kv_both" in move.why and move.tokens > 0
        assert all(output.explain.restarts == 0 for output in last.values())
        assert last[gone].outputs[0].finish_reason == "abort"


async def test_operators_drain_over_http() -> None:
    async with group() as engine:
        app = create_app(engine, ServerConfig(), engine.model_config)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://s") as http:
            answers = await spread(engine)
            drained = await http.post("/drain_engine?engine=1")
            assert drained.json() == {"engine": 1, "moved": 0, "computed": 4, "stayed": 0}
            told = (await http.get("/health")).json()["engines"]
            assert [each["state"] for each in told] == ["running", "drained"]
            assert (await http.post("/drain_engine?engine=0")).status_code == 409
            assert (await http.post("/drain_engine?engine=7")).status_code == 404
            for wrong in (
                "",
                "?engine=",
                "?engine=-1",
                "?engine=1&engine=2",
                "?engine=1&then=end",
                "?engine=1&end=yes",
            ):
                assert (await http.post(f"/drain_engine{wrong}")).status_code == 400, wrong
            assert await asyncio.gather(*answers) == expected()
            assert 'request_moves_total{model_name="fake",outcome="computed"} 4.0' in (await http.get("/metrics")).text
            assert (await http.post("/undrain_engine?engine=1")).json() == {"status": "running"}
            assert (await http.post("/rebalance_engines")).json() == {"moved": 0, "computed": 0, "stayed": 0}
            assert (await http.post("/rebalance_engines?engine=1")).status_code == 400
            assert states(engine) == ["running", "running"]
        await app.state.context.close()
