"""A process that waits for the next engine's death."""

import asyncio
import os
import signal

import psutil
import pytest
from fakes import TARGET, make_config

from core.api.config import RestartConfig
from core.api.errors import EngineDeadError
from core_supervision import standby
from core_supervision.link.zmq_client import ZmqClient
from core_supervision.revival import OwnedEngineSource

KILLED = EngineDeadError("killed", cause="killed")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "SETTLE_S", 0.0)


def source(*, with_standby: bool) -> OwnedEngineSource:
    restarts = RestartConfig(limit=5, backoff_s=0.0, standby=with_standby)
    return OwnedEngineSource(make_config(restarts=restarts), executor=TARGET)


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


async def until_children(count: int, before: set[int]) -> set[int]:
    async with asyncio.timeout(20):
        while len(children() - before) != count:
            await asyncio.sleep(0.01)
    return children() - before


async def after_death(engines: OwnedEngineSource, client: ZmqClient) -> ZmqClient:
    os.kill(client.pid, signal.SIGKILL)
    await client.close()
    return await engines.next(KILLED)


async def test_the_process_that_waited_becomes_the_next_engine() -> None:
    before = children()
    engines = source(with_standby=True)
    client = await engines.first()
    for epoch in (1, 2):
        pids = await until_children(2, before)
        (waiting,) = pids - {client.pid}
        client = await after_death(engines, client)
        assert client.pid == waiting
        assert client.epoch == epoch
    await until_children(2, before)
    await engines.close()
    assert await until_children(1, before) == {client.pid}
    await client.close()
    await until_children(0, before)


async def test_a_waiting_process_that_died_is_replaced() -> None:
    before = children()
    engines = source(with_standby=True)
    client = await engines.first()
    (waiting,) = await until_children(2, before) - {client.pid}
    os.kill(waiting, signal.SIGKILL)
    await until_children(1, before)
    client = await after_death(engines, client)
    assert client.pid != waiting
    await engines.close()
    await client.close()
    await until_children(0, before)


async def test_without_one_nothing_waits() -> None:
    before = children()
    engines = source(with_standby=False)
    client = await engines.first()
    await asyncio.sleep(0.05)
    assert children() - before == {client.pid}
    await engines.close()
    await client.close()
