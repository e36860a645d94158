"""Helper processes: one answer for each job, a limit of time, a way out of every death."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from core_supervision.helpers import helper as helpers
from core_supervision.helpers.blocking import BlockingHelper
from core_supervision.helpers.helper import Helper
from core_supervision.helpers.lane import Lane, spawn
from core_supervision.helpers.link import HelperEnded
from tests.engine.helper_child import Reply

LANE = Lane("tests.engine.helper_child", "helps tests", job_seconds=30.0)


def made(lane: Lane = LANE, first: str = "hello") -> Helper:
    return Helper(lane, lambda: msgspec.msgpack.encode(first))


@asynccontextmanager
async def running(lane: Lane = LANE, first: str = "hello") -> AsyncIterator[Helper]:
    helper = made(lane, first)
    try:
        yield helper
    finally:
        await helper.close()


async def asked(helper: Helper, job: str) -> Reply:
    return msgspec.msgpack.decode(await helper.ask(job.encode()), type=Reply)


async def test_jobs_are_answered_by_one_process_until_it_wants_to_be_replaced() -> None:
    async with running(replace(LANE, most_jobs=3)) as helper:
        helper.start(spawned := spawn(LANE))
        replies = await asyncio.gather(*(asked(helper, f"say {i}") for i in range(8)))
        assert [reply.said for reply in replies] == [f"hello {i}" for i in range(8)]
        assert {reply.pid for reply in replies} == {spawned.process.pid}
        assert (await asked(helper, "last one")).pid == spawned.process.pid
        assert (await asked(helper, "say next")).pid != spawned.process.pid


async def test_a_job_that_takes_too_long_ends_with_its_process_and_the_next_one_is_done() -> None:
    async with running(replace(LANE, most_jobs=2)) as helper:
        first = await asked(helper, "say 1")
        helper.lane = replace(helper.lane, job_seconds=0.2)
        slow = asyncio.ensure_future(asked(helper, "sleep 600"))
        await asyncio.sleep(0)
        helper.lane = LANE
        other, caught = await asyncio.gather(asked(helper, "say 2"), slow, return_exceptions=True)
        assert isinstance(caught, HelperEnded) and caught.timed_out and caught.began
        assert isinstance(other, Reply) and other.said == "hello 2" and other.pid != first.pid


async def test_what_is_loaded_for_a_job_does_not_count_as_its_own_time() -> None:
    lane = replace(LANE, job_seconds=0.5, load_seconds=30.0)
    async with running(lane, "reports") as helper:
        assert (await asked(helper, "load 1.0")).said == "reports 1.0"
        with pytest.raises(HelperEnded) as caught:
            await asked(helper, "sleep 600")
        assert caught.value.timed_out and caught.value.began


async def test_a_job_at_which_processes_die_is_tried_so_often_and_no_more() -> None:
    async with running() as helper:
        with pytest.raises(HelperEnded, match="exit code 7") as caught:
            await asked(helper, "die 7")
        assert caught.value.began and not caught.value.timed_out
        assert (await asked(helper, "say after")).said == "hello after"


async def test_processes_that_fail_at_once_are_started_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    plain = asyncio.sleep

    async def sleep(seconds: float) -> None:
        if seconds:
            pauses.append(seconds)
        await plain(0)

    monkeypatch.setattr(helpers.asyncio, "sleep", sleep)
    async with running(first="fail") as helper:
        for _ in range(4):
            with pytest.raises(HelperEnded, match="exit code 4"):
                await asked(helper, "say no")
    assert pauses == sorted(pauses) and len(pauses) == 7 and pauses[-1] == helpers.LAST_PAUSE_S


def test_threads_that_block_have_one_too() -> None:
    blocking = BlockingHelper(made())
    reply = msgspec.msgpack.decode(blocking.ask(b"say it"), type=Reply)
    assert reply.said == "hello it"
    os.kill(reply.pid, signal.SIGKILL)
    assert msgspec.msgpack.decode(blocking.ask(b"say more"), type=Reply).said == "hello more"
    blocking.close()
    with pytest.raises(HelperEnded, match="closed"):
        blocking.ask(b"say nothing")


def test_an_idle_process_ends() -> None:
    blocking = BlockingHelper(made(replace(LANE, idle_seconds=0.05)))
    reply = msgspec.msgpack.decode(blocking.ask(b"say it"), type=Reply)
    deadline = time.monotonic() + 30
    while Path(f"/proc/{reply.pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    blocking.close()
