"""The event loop that tells which callbacks take too long, by processor time, with their names."""

import asyncio
import functools
import gc
import logging
import socket
import sys
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import uvloop

from core_apis.server.loop_watch import LoopWatch, WatchedLoop, callback_name, innermost, loop_factory, watch_of
from core_config.resolve import resolve
from core_observers.families.loop_metrics import LoopCollector
from core_observers.log_repeats import RepeatFilter


class Clock:
    """Processor time, which passes as it is told."""

    def __init__(self) -> None:
        self.worked = 0.0

    def __call__(self) -> float:
        return self.worked

    def work(self, seconds: float) -> float:
        self.worked += seconds
        return seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def loop(clock: Clock) -> Iterator[WatchedLoop]:
    made = WatchedLoop(LoopWatch(0.02, clock))
    made.watch.begin()
    yield made
    made.close()


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "core_apis.server.loop_watch"]


def test_callbacks_of_every_kind_are_measured(
    loop: WatchedLoop, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def steps() -> None:
        clock.work(0.03)
        await asyncio.sleep(0)
        clock.work(0.001)
        await asyncio.sleep(0)

    async def main() -> None:
        await steps()
        loop.call_soon(clock.work, 0.04)
        loop.call_later(0.001, functools.partial(clock.work, 0.05))
        loop.call_at(loop.time(), clock.work, 0.06)
        await asyncio.to_thread(loop.call_soon_threadsafe, clock.work, 0.07)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            loop.add_reader(ours, lambda: clock.work(0.08) and loop.remove_reader(ours))
            theirs.send(b"a")
            await asyncio.sleep(0.02)

    loop.run_until_complete(main())
    assert loop.watch.num_slow == 6 and loop.watch.longest_s == pytest.approx(0.08)
    texts = told(caplog)
    assert "30.0 ms" in texts[0] and "task test_callbacks_of_every_kind_are_measured.<locals>.main" in texts[0]
    assert "tests/apis/test_loop_watch.py" in texts[0] and "--max-callback-ms" in texts[0]
    assert sum("Clock.work" in text for text in texts) == 4


def test_connections_are_measured(loop: WatchedLoop, clock: Clock) -> None:
    class Working(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            clock.work(0.03)
            got.set()

    got = asyncio.Event()

    async def main() -> None:
        server = await loop.create_server(Working, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        _, writer = await asyncio.open_connection(*address)
        writer.write(b"a")
        await got.wait()
        writer.close()
        server.close()

    loop.run_until_complete(main())
    assert loop.watch.num_slow == 1


def test_a_closed_connection_is_freed_at_once(loop: WatchedLoop) -> None:
    protocols: list[weakref.ref[asyncio.Protocol]] = []

    class Ended(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            protocols.append(weakref.ref(self))
            transport.close()

    async def main() -> None:
        server = await loop.create_server(Ended, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.close()
        await writer.wait_closed()
        server.close()

    gc.disable()
    try:
        loop.run_until_complete(main())
        loop.run_until_complete(asyncio.sleep(0.01))
        assert [found() for found in protocols] == [None]
    finally:
        gc.enable()


def test_a_start_and_a_wait_count_for_nothing(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    loop = WatchedLoop(LoopWatch(0.02, clock))

    async def starting() -> None:
        clock.work(1.0)

    async def waiting() -> None:
        time.sleep(0.05)  # a busy machine: no work of ours

    loop.run_until_complete(starting())
    loop.watch.begin()
    loop.run_until_complete(waiting())
    loop.close()
    assert loop.watch.num_slow == 0 and not told(caplog)


def test_the_function_that_works_is_named(caplog: pytest.LogCaptureFixture) -> None:
    loop = WatchedLoop(LoopWatch(0.01))

    async def busy() -> None:
        numbers_of_a_function()

    loop.watch.begin()
    with caplog.at_level(logging.WARNING):
        loop.run_until_complete(busy())
    loop.close()
    assert loop.watch.num_slow == 1
    assert ", in tests/apis/test_loop_watch.py" in told(caplog)[0] and "numbers_of_a_function" in told(caplog)[0]


def test_names_that_differ_are_lines_of_their_own(
    loop: WatchedLoop, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    def other() -> None:
        clock.work(0.05)

    def main() -> None:
        clock.work(0.03)

    for callback in (main, main, other):
        loop.watch.run(callback)
    kept = RepeatFilter()
    texts = [record.getMessage() for record in caplog.records if kept.filter(record)]
    assert [text.partition(" ms")[0] for text in texts] == ["A callback took 30.0", "A callback took 50.0"]
    assert "by the clock), at most 20 are allowed" in texts[0] and texts[1].endswith("<locals>.other.")


def test_a_sample_just_after_the_callback_names_nothing_else() -> None:
    seen: list[str] = []

    def busy() -> float:
        seen.append(innermost(sys._getframe(1)))
        return 0.0

    watch = LoopWatch(0.01, busy)
    watch._counts = True
    watch.run(lambda: None)
    assert seen == ["", ""]


def numbers_of_a_function() -> None:
    end = time.thread_time() + 0.1
    while time.thread_time() < end:
        pass


def test_errors_go_through(loop: WatchedLoop, clock: Clock) -> None:
    async def failing() -> None:
        clock.work(0.03)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop.run_until_complete(failing())
    assert loop.watch.num_slow == 1


def test_without_the_argument_the_loop_is_the_usual_one() -> None:
    assert loop_factory(None) is uvloop.new_event_loop
    made = loop_factory(20.0)()
    watch = watch_of(made)
    assert watch is not None and watch.limit_s == 0.02
    made.close()


def test_the_argument_reaches_the_server(tiny_llama: Any) -> None:
    settings = {"model": str(tiny_llama), "max_callback_ms": 12.5}
    assert resolve(settings, context="serve", environ={}).server.max_callback_ms == 12.5
    del settings["max_callback_ms"]
    assert resolve(settings, context="serve", environ={}).server.max_callback_ms is None


def test_metrics() -> None:
    watch = LoopWatch(0.02)
    watch.num_slow, watch.longest_s = 3, 0.25
    samples = [each for metric in LoopCollector("core:", "m", watch).collect() for each in metric.samples]
    assert [(each.name, each.value) for each in samples] == [
        ("core:slow_callbacks_total", 3),
        ("core:longest_callback_seconds", 0.25),
    ]


def test_names() -> None:
    assert callback_name(functools.partial(functools.partial(callback_name), 1)) == "callback_name"
    assert callback_name(Clock()) == "Clock"
