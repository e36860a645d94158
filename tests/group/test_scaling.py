"""Engines of a group that come and go while requests run: the same tokens, and a failure leaves the old ones."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from fakes import TARGET, make_config, make_resolution, reference

from core.api.config import EngineConfig, RestartConfig
from core.api.errors import EngineDeadError, RequestError, UserError
from core_apis.app import create_app
from core_config.served.server_config import ServerConfig
from core_frontend.async_engine import AsyncEngine
from core_frontend.group import scaling as scaling_module
from core_frontend.group.orders import Scaled
from core_supervision import standby
from core_supervision.link.zmq_client import ZmqClient
from core_supervision.revival import OwnedEngineSource
from tests.group.test_drains import expected, moves_of
from tests.group.test_group import RESTARTS, answer, asked, client_of, states, until

ALL = ["running", "running", "running"]


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    """One that can be undone while the engines' processes still need what the others have set."""
    with pytest.MonkeyPatch.context() as found:
        yield found


@asynccontextmanager
async def elastic(
    started: int = 1, places: int = 3, restarts: RestartConfig = RESTARTS, **options: Any
) -> AsyncIterator[AsyncEngine]:
    config: EngineConfig = make_config(options={"delay_s": 0.005, **options}, max_model_len=256, restarts=restarts)
    config = msgspec.structs.replace(config, data_parallel_size=places, data_parallel_started=started)
    engine = await AsyncEngine.start(make_resolution(config), executor=TARGET)
    try:
        async with asyncio.timeout(40):
            yield engine
    finally:
        await engine.close()


async def scale(engine: AsyncEngine, size: int, drain_s: float = 0.0) -> Scaled:
    return await moves_of(engine).scale(size, drain_s)


def children() -> set[int]:
    """The processes that this one has started and that have not ended."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found |= set(map(int, (task / "children").read_text().split()))
    return {pid for pid in found if _is_engine(pid)}


def _is_engine(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"engine" in words


async def test_streams_go_on_while_the_server_grows_and_shrinks() -> None:
    async with elastic() as engine:
        assert states(engine) == ["running", "ended", "ended"]
        answers = asked(engine, 200)
        await until(lambda: engine.engines[0].num_running == 8)
        grown = await scale(engine, 3)
        assert (grown.data_parallel_size, grown.message) == (3, "Scaled to 3 data parallel engines")
        assert states(engine) == ALL and len(children()) == 3
        more = asked(engine, 100)
        await until(lambda: all(each.num_running for each in engine.engines))
        shrunk = await scale(engine, 1)
        assert shrunk.computed > 0 and shrunk.stayed == 0
        assert states(engine) == ["running", "ended", "ended"] and len(children()) == 1
        assert await asyncio.gather(*answers, *more) == [*expected(200), *expected(100)]
        assert (await scale(engine, 2)).data_parallel_size == 2
        assert await asyncio.gather(*asked(engine, 10)) == expected(10)
        assert engine.restarts.num_restarts.total() == 0
        await engine.check_health()
    assert not children()


async def test_requests_end_where_they_are_within_the_time_to_drain() -> None:
    async with elastic(3) as engine:
        answers = asked(engine, 60)
        await until(lambda: all(each.num_running for each in engine.engines))
        shrinking = asyncio.create_task(scale(engine, 1, 30.0))
        await until(lambda: states(engine)[1:] == ["draining", "draining"])
        queries = [stats.prefix_queries for stats in engine.stats_of_engines]
        assert await asyncio.gather(*asked(engine, 10)) == expected(10)
        assert [stats.prefix_queries for stats in engine.stats_of_engines][1:] == queries[1:], "they get no request"
        shrunk = await shrinking
        assert (shrunk.moved, shrunk.computed) == (0, 0)
        assert await asyncio.gather(*answers) == expected()


async def test_sizes_that_cannot_be_and_a_second_change_are_refused() -> None:
    async with elastic(1, 2) as engine:
        for size in (0, -1, 3):
            with pytest.raises(RequestError, match=rf"new_data_parallel_size is {size}; expected 1 to 2") as refused:
                await scale(engine, size)
            assert refused.value.status == 400
        assert (await scale(engine, 1)).data_parallel_size == 1, "as many as there are"
        growing = asyncio.create_task(scale(engine, 2))
        await asyncio.sleep(0)
        assert await moves_of(engine).is_scaling()
        await until(lambda: states(engine) == ["running", "starting"])
        moves = moves_of(engine)
        for order in (scale(engine, 1), moves.drain(0), moves.undrain(1)):
            with pytest.raises(RequestError, match="The number of engines is being changed") as refused:
                await order
            assert refused.value.status == 409
        await growing
        assert not await moves.is_scaling() and states(engine) == ["running", "running"]


@pytest.mark.parametrize("place", [1, 2])
async def test_a_start_that_fails_leaves_the_old_size(place: int, patch: pytest.MonkeyPatch) -> None:
    """As where there is no memory for one more: the other one that was to come has come up by then, or not yet."""
    real = OwnedEngineSource.another

    async def another(source: OwnedEngineSource) -> ZmqClient:
        client = await real(source)
        if client.pid and source is client_of(engine).members[place].source:
            await client.close()
            raise UserError("the weights need 4 GiB, and 1 GiB is free")
        return client

    async with elastic(restarts=RestartConfig(limit=0)) as engine:
        patch.setattr(OwnedEngineSource, "another", another)
        answers = asked(engine, 100)
        with pytest.raises(RequestError, match=r"goes on with the engines that it has \(1\).*4 GiB") as refused:
            await scale(engine, 3)
        assert refused.value.status == 503 and states(engine) == ["running", "ended", "ended"]
        assert len(children()) == 1
        assert await asyncio.gather(*answers) == expected(100)
        patch.undo()
        await scale(engine, 3)
        assert states(engine) == ALL
        assert await asyncio.gather(*asked(engine, 10)) == expected(10)


@pytest.mark.parametrize("moment", ["starting", "started", "joining"])
async def test_a_new_engine_that_is_killed_leaves_the_old_size(moment: str, patch: pytest.MonkeyPatch) -> None:
    async with elastic(1, 2) as engine:
        (old,) = children()
        answers = asked(engine, 100)
        if moment == "joining":
            real = scaling_module.GroupRecovery.level

            async def level(recovery: Any, member: Any, client: ZmqClient) -> None:
                os.kill(client.pid, signal.SIGKILL)
                await until(lambda: client.dead_error is not None)
                await real(recovery, member, client)

            patch.setattr(scaling_module.GroupRecovery, "level", level)
        growing = asyncio.create_task(scale(engine, 2))
        if moment != "joining":
            await until(lambda: len(children()) == 2)
            await asyncio.sleep(0.0 if moment == "starting" else 0.3)
            for pid in children() - {old}:
                os.kill(pid, signal.SIGKILL)
            if growing.done() or moment == "started":
                await asyncio.wait({growing})
        try:
            await growing
            assert moment == "started", "it had joined: its death is one as any other"
            await until(lambda: states(engine) == ["running", "running"])
        except RequestError as refused:
            assert refused.status == 503 and "goes on with the engines that it has (1)" in str(refused)
            assert states(engine) == ["running", "ended"] and children() == {old}
        assert await asyncio.gather(*answers) == expected(100)
        patch.undo()
        await scale(engine, 2)
        assert await asyncio.gather(*asked(engine, 10)) == expected(10)


@pytest.mark.parametrize("victim", [0, 1])
async def test_a_death_while_the_server_shrinks(victim: int) -> None:
    async with elastic(2, 2) as engine:
        answers = asked(engine, 100)
        await until(lambda: all(each.num_running for each in engine.engines))
        shrinking = asyncio.create_task(scale(engine, 1, 0.1))
        await until(lambda: states(engine)[1] == "draining")
        os.kill(client_of(engine).members[victim].client.pid, signal.SIGKILL)
        with contextlib.suppress(
            RequestError
        ):  # where the last engine that took requests has died, the other one goes on
            await shrinking
        assert await asyncio.gather(*answers) == expected(100)
        await until(lambda: "restarting" not in states(engine))
        await scale(engine, 1)
        assert sorted(states(engine)) == ["ended", "running"]
        assert await answer(engine, [3, 4], 10) == reference([3, 4], 10)


async def test_a_new_engine_is_paused_as_the_others_are() -> None:
    async with elastic(1, 2) as engine:
        answers = asked(engine, 60)
        await until(lambda: engine.engines[0].num_running == 8)
        await engine.control.pause("keep")
        await scale(engine, 2)
        assert (await client_of(engine).members[1].client.call("lifecycle"))["is_paused"]
        await engine.control.resume()
        assert await asyncio.gather(*answers) == expected()


async def test_calls_are_made_while_an_engine_starts() -> None:
    async with elastic(1, 2) as engine:
        growing = asyncio.create_task(scale(engine, 2))
        await until(lambda: states(engine) == ["running", "starting"])
        await engine.control.pause("keep")
        await growing
        assert (await client_of(engine).members[1].client.call("lifecycle"))["is_paused"]
        await engine.control.resume()
        assert await asyncio.gather(*asked(engine, 10)) == expected(10)


async def test_a_server_that_ends_while_it_grows_leaves_nothing() -> None:
    async with elastic(1, 3) as engine:
        growing = asyncio.create_task(scale(engine, 3))
        await until(lambda: len(children()) == 3)
        await engine.close()
        assert not children()
        with pytest.raises((asyncio.CancelledError, RequestError, EngineDeadError)):
            await growing


async def test_a_process_that_stands_by_ends_with_its_place(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(standby, "SETTLE_S", 0.0)
    async with elastic(1, 2, msgspec.structs.replace(RESTARTS, standby=True)) as engine:
        await until(lambda: len(children()) == 2)
        before = children()
        await scale(engine, 2)
        await until(lambda: len(children()) == 4)
        await scale(engine, 1)
        assert children() == before
        await scale(engine, 2)
        assert await asyncio.gather(*asked(engine, 10)) == expected(10)


async def test_one_place_is_started_when_no_other_engine_is_left() -> None:
    async with elastic(restarts=RestartConfig(limit=0)) as engine:
        answers = asked(engine, 60)
        await until(lambda: engine.engines[0].num_running == 8)
        os.kill(client_of(engine).members[0].client.pid, signal.SIGKILL)
        assert await asyncio.gather(*answers) == expected()
        assert states(engine) == ["gone", "running", "ended"]
        with pytest.raises(RequestError, match="2 is the most"):
            await scale(engine, 3)
        assert (await scale(engine, 2)).data_parallel_size == 2


async def test_over_http() -> None:
    async with elastic(1, 2) as engine:
        app = create_app(engine, ServerConfig(admin_api_keys=("secret",), api_keys=("tenant",)), engine.model_config)
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://test", headers={"Authorization": "Bearer secret"}
        ) as http:
            path = "/scale_elastic_ep"
            found = await http.post(path, json={"new_data_parallel_size": 2, "drain_timeout": 5})
            assert found.json() == {
                "message": "Scaled to 2 data parallel engines",
                "data_parallel_size": 2,
                **dict.fromkeys(("moved", "computed", "stayed"), 0),
            }
            assert (await http.get("/is_scaling_elastic_ep")).json() == {"is_scaling_elastic_ep": False}
            assert [each["state"] for each in (await http.get("/health")).json()["engines"]] == ["running", "running"]
            for body, named in (
                ({}, "new_data_parallel_size"),
                ({"new_data_parallel_size": "2"}, "new_data_parallel_size"),
                ({"new_data_parallel_size": 9}, "expected 1 to 2"),
                ({"new_data_parallel_size": 1, "drain_timeout": -1}, "drain_timeout is -1"),
                ({"new_data_parallel_size": 1, "drain": 1}, "drain"),
            ):
                refused = await http.post(path, json=body)
                assert refused.status_code == 400 and named in refused.text, refused.text
            tenant = await http.post(
                path, json={"new_data_parallel_size": 1}, headers={"Authorization": "Bearer tenant"}
            )
            assert tenant.status_code == 403 and states(engine) == ["running", "running"]
