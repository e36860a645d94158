"""When a server collects garbage cycles, and what a collection beside requests looks at."""

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator, Iterator

import pytest

from core_apis.server import garbage


class Node:
    """An object that refers to itself, so that only a collection frees it."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.fixture
async def running(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[int]]:
    """The number of running requests of a server that collects without pauses."""
    monkeypatch.setattr(garbage, "PAUSE_S", 0.0)
    gc.collect()
    numbers = [0]
    task = asyncio.ensure_future(garbage.collect_garbage(lambda: numbers[0]))
    await asyncio.sleep(0)
    yield numbers
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def make_due() -> None:
    """Collect the younger generations until a full collection is due, and give it a chance."""
    for _ in range(garbage.USUAL + 1):
        gc.collect(1)
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("num_running", [0, 3])
async def test_new_garbage_is_collected_with_and_without_requests(running: list[int], num_running: int) -> None:
    running[0] = num_running
    gone = weakref.ref(Node())
    await make_due()
    assert gone() is None
    assert gc.get_count()[2] < garbage.USUAL


async def test_a_collection_beside_requests_looks_at_new_objects_alone(running: list[int]) -> None:
    running[0] = 3
    kept = [Node() for _ in range(1000)]
    await make_due()
    looked_at = gc.get_objects()
    assert not any(found is kept for found in looked_at)
    assert len(looked_at) < 1000


async def test_objects_of_a_large_body_are_frozen_unseen(running: list[int]) -> None:
    running[0] = 3
    node = Node()
    unseen = weakref.ref(node)
    for _ in range(garbage.TOO_MANY + 1):
        gc.collect(1)
    del node
    for _ in range(5):
        await asyncio.sleep(0)
    assert unseen() is not None
    assert gc.get_count()[2] < garbage.USUAL


async def test_cycles_that_outlived_a_collection_go_in_an_idle_moment(
    running: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    running[0] = 3
    node = Node()
    gone = weakref.ref(node)
    await make_due()
    del node
    running[0] = 0
    await make_due()
    assert gone() is not None  # one alone is not worth a look at all objects
    monkeypatch.setattr(garbage, "MOST_LEFT", -1)
    await make_due()
    assert gone() is None


async def test_a_server_that_is_never_idle_looks_at_all_objects_at_last(
    running: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    running[0] = 3
    node = Node()
    gone = weakref.ref(node)
    await make_due()
    del node
    monkeypatch.setattr(garbage, "MOST_HELD", -1)
    await make_due()
    assert gone() is None
