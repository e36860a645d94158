"""When a server collects garbage cycles: between requests, or when it has waited for long."""

import asyncio
import contextlib
import gc

import pytest

from core_apis.server import garbage


@pytest.fixture(autouse=True)
def thresholds():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


async def looked_at_all(monkeypatch: pytest.MonkeyPatch, num_running: int) -> bool:
    """Whether all objects were looked at while so many requests ran and garbage was due."""
    monkeypatch.setattr(garbage, "PAUSE_S", 0.0)
    before = gc.get_stats()[2]["collections"]
    task = asyncio.ensure_future(garbage.collect_between_requests(lambda: num_running))
    await asyncio.sleep(0)
    for _ in range(garbage.USUAL + 1):
        gc.collect(1)
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return gc.get_stats()[2]["collections"] > before


async def test_all_objects_are_looked_at_between_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    assert await looked_at_all(monkeypatch, 0)
    assert gc.get_count()[2] < garbage.USUAL


async def test_not_beside_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    assert not await looked_at_all(monkeypatch, 3)
