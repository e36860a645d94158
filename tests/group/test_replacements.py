"""An engine process of a group that gets SIGTERM: its requests go on in the others, and the next engine takes its place."""

import asyncio
import logging
import os
import signal

import pytest

from core.api.config import RestartConfig
from core_frontend.async_engine import AsyncEngine
from core_frontend.group import moves as moves_module
from tests.group.test_drains import expected, moves_of, spread
from tests.group.test_group import asked, client_of, group, states, until
from tests.group.test_moves import FASTER, ended, nothing_is_left
from tests.group.test_moves import group as group_with_pages
from tests.group.test_moves import spread as spread_with_pages


def pid_of(engine: AsyncEngine, index: int) -> int:
    return client_of(engine).members[index].client.pid


def ask_to_end(engine: AsyncEngine, index: int) -> int:
    """Send SIGTERM; returns the process id."""
    pid = pid_of(engine, index)
    os.kill(pid, signal.SIGTERM)
    return pid


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def until_replaced(engine: AsyncEngine, pid: int) -> None:
    await until(lambda: is_gone(pid))
    await until(lambda: states(engine) == ["running", "running"])


async def test_pages_go_along_and_the_end_is_no_death(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves_module, "compare", lambda *facts, **more: FASTER)
    async with group_with_pages() as engine:
        tasks = await spread_with_pages(engine)
        await until_replaced(engine, ask_to_end(engine, 1))
        outputs = await ended(tasks)
        assert moves_of(engine).counts["moved"] == 2
        assert sorted(len(output.explain.moves) for output in outputs) == [0, 0, 1, 1]
        assert engine.restarts.num_restarts.total() == 0 and not engine.restarts.latest
        await nothing_is_left(engine)
        # Each engine may be replaced more often than engines may die.
        await until_replaced(engine, ask_to_end(engine, 0))


async def test_it_is_asked_more_often_than_engines_may_die() -> None:
    async with group(RestartConfig(limit=0)) as engine:
        for index in (0, 1, 1):
            answers = asked(engine, 60)
            await until(lambda: all(each.num_running for each in engine.engines))
            await until_replaced(engine, ask_to_end(engine, index))
            assert await asyncio.gather(*answers) == expected()
        await engine.check_health()


@pytest.mark.parametrize("victim", [0, 1])
async def test_a_death_while_pages_move(victim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves_module, "compare", lambda *facts, **more: FASTER)
    async with group_with_pages() as engine:
        tasks = await spread_with_pages(engine)
        pid = ask_to_end(engine, 1)
        await until(lambda: states(engine)[1] != "running")
        await asyncio.sleep(0.01)
        os.kill(pid_of(engine, victim), signal.SIGKILL)
        await ended(tasks)
        # Without another engine it goes on, if that one died before the requests were there.
        await until(lambda: states(engine) == ["running", "running"] and (is_gone(pid) or victim == 0))
        await nothing_is_left(engine)


async def test_the_next_engine_is_paused_as_the_others_are() -> None:
    async with group() as engine:
        answers = await spread(engine)
        await engine.control.pause("keep")
        await until_replaced(engine, ask_to_end(engine, 1))
        assert (await client_of(engine).members[1].client.call("lifecycle"))["is_paused"]
        assert not any(each.done() for each in answers)
        await engine.control.resume()
        assert await asyncio.gather(*answers) == expected()


@pytest.mark.parametrize("victim", [0, 1])
async def test_a_death_meanwhile(victim: int) -> None:
    async with group() as engine:
        answers = await spread(engine)
        pid = ask_to_end(engine, 1)
        await until(lambda: states(engine)[1] != "running")
        os.kill(pid_of(engine, victim), signal.SIGKILL)
        assert await asyncio.gather(*answers) == expected()
        await until_replaced(engine, pid)
        assert await asyncio.gather(*asked(engine, 10)) == expected(10)
        await engine.check_health()


async def test_the_last_engine_goes_on_and_a_drained_one_stays_out(caplog: pytest.LogCaptureFixture) -> None:
    async with group() as engine:
        answers = await spread(engine)
        await moves_of(engine).drain(1)
        with caplog.at_level(logging.WARNING):
            pid = ask_to_end(engine, 0)
            await until(lambda: "goes on, since no other one takes requests now" in caplog.text)
        assert await asyncio.gather(*answers) == expected() and not is_gone(pid)
        drained = ask_to_end(engine, 1)
        await until(lambda: is_gone(drained))
        await until(lambda: states(engine) == ["running", "drained"])
        await moves_of(engine).undrain(1)
        await until_replaced(engine, ask_to_end(engine, 0))


async def test_an_operator_who_ends_it_meanwhile_has_the_last_word() -> None:
    async with group() as engine:
        answers = await spread(engine)
        pid = ask_to_end(engine, 1)
        await until(lambda: states(engine)[1] != "running")
        await moves_of(engine).drain(1, ends=True)
        await until(lambda: is_gone(pid))
        assert await asyncio.gather(*answers) == expected()
        await until(lambda: states(engine)[1] in ("ended", "drained"))


async def test_a_server_that_ends_replaces_none() -> None:
    async with group() as engine:
        answers = await spread(engine)
        pids = [ask_to_end(engine, index) for index in (0, 1)]
        moves_of(engine).keep_engines()
        assert await asyncio.gather(*answers) == expected()
        assert not any(map(is_gone, pids)) and states(engine) == ["running", "running"]
