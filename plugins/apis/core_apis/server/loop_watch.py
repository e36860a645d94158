"""An event loop that reports callbacks that take too long: `--max-callback-ms`.

Owns: the measurement of every callback by the CPU time of its thread, so that a busy machine causes no false alarm; the
log line with its name. Never does: end a callback, or cost anything when it is off. Called by: the launcher and API
processes (they make the loop), the service (it starts the count once requests are served).
"""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import sys
import threading
import time
from collections.abc import Callable
from contextvars import Context
from pathlib import Path
from types import FrameType
from typing import Any, TypeVarTuple, cast

import uvloop

import core

logger = logging.getLogger(__name__)

ROOT = str(Path(core.__file__).parents[1])
LOOKS = 4
"""Number of times the running callback is sampled within its time limit."""
PROTOCOL_CALLS = (
    "connection_made",
    "connection_lost",
    "data_received",
    "eof_received",
    "pause_writing",
    "resume_writing",
)

Ts = TypeVarTuple("Ts")
LoopFactory = Callable[[], asyncio.AbstractEventLoop]


class LoopWatch:
    """The measurement of the callbacks of one loop.

    limit_s: CPU time limit of one callback, in seconds.
    num_slow: number of callbacks over the limit since `begin`. longest_s: the longest one since then.
    busy: the clock of the calling thread.
    """

    def __init__(self, limit_s: float, busy: Callable[[], float] = time.thread_time) -> None:
        self.limit_s = limit_s
        self.num_slow = 0
        self.longest_s = 0.0
        self._busy = busy
        self._counts = False
        self._running_since: float | None = None
        self._seen = ""
        self._thread = 0
        self._collecting_since = 0.0
        self._collected_s = 0.0

    def begin(self) -> None:
        """Count from now on.

        Called in the thread of the loop; callbacks during the start take long, and no client waits for them.
        """
        self._counts = True
        self._thread = threading.get_ident()
        gc.callbacks.append(self._note_collection)
        threading.Thread(target=self._look, name="core-loop-watch", daemon=True).start()

    def measured(self, callback: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same callback, measured."""
        return functools.partial(self.run, callback)

    def run(self, callback: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Run a callback; if it takes too long, log and count it."""
        if not self._counts or self._running_since is not None:  # a nested callback counts towards the outer one
            return callback(*arguments, **options)
        self._seen = ""
        self._collected_s = 0.0
        since = self._running_since = time.monotonic()
        begin = self._busy()
        try:
            return callback(*arguments, **options)
        finally:
            seconds = self._busy() - begin
            self._running_since = None
            self.longest_s = max(self.longest_s, seconds)
            if seconds > self.limit_s:
                self.num_slow += 1
                self._log(callback, seconds, time.monotonic() - since)

    def _log(self, callback: Callable[..., Any], seconds: float, passed: float) -> None:
        """Log a callback that took too long. passed: seconds by the clock.

        Its name is part of the format: of lines with the same one a log keeps one a minute.
        """
        where = self._seen and f", in {self._seen}"
        words = (
            "A callback took %.1f ms of the event loop (%.1f by the clock), at most %g are allowed (--max-callback-ms): "
            f"{_plain(callback_name(callback) + where)}%s."
        )
        collecting = f", {self._collected_s * 1000:.1f} ms of it collecting garbage" if self._collected_s else ""
        logger.warning(words, seconds * 1000, passed * 1000, self.limit_s * 1000, collecting)

    def _note_collection(self, phase: str, facts: dict[str, int]) -> None:
        """Add up the time of garbage collections within the running callback. Called by the collector."""
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._collecting_since = self._busy()
        else:
            self._collected_s += self._busy() - self._collecting_since

    def _look(self) -> None:
        """Sample the position of a callback that has run for some time. Runs in a thread of its own."""
        pause = self.limit_s / LOOKS
        while True:
            time.sleep(pause)
            since = self._running_since
            if since is None or time.monotonic() - since < pause:
                continue
            frame = sys._current_frames().get(self._thread)
            if frame is not None:
                self._seen = innermost(frame) or self._seen


class WatchedLoop(uvloop.Loop):
    """A uvloop loop whose callbacks are measured."""

    def __init__(self, watch: LoopWatch) -> None:
        super().__init__()
        self.watch = watch
        self._measured_classes: dict[type, type] = {}

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Schedule a measured callback, as in `uvloop.Loop`."""
        return super().call_soon(self.watch.measured(callback), *args, context=context)

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Schedule a measured callback from another thread, as in `uvloop.Loop`."""
        return super().call_soon_threadsafe(self.watch.measured(callback), *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule a measured callback after a delay, as in `uvloop.Loop`, whose `call_at` calls this method."""
        return super().call_later(delay, self.watch.measured(callback), *args, context=context)

    def add_reader(self, fd: Any, callback: Callable[[*Ts], Any], *args: *Ts) -> None:
        """Watch a descriptor for reads with a measured callback, as in `uvloop.Loop`."""
        super().add_reader(fd, self.watch.measured(callback), *args)

    def add_writer(self, fd: Any, callback: Callable[[*Ts], Any], *args: *Ts) -> None:
        """Watch a descriptor for writes with a measured callback, as in `uvloop.Loop`."""
        super().add_writer(fd, self.watch.measured(callback), *args)

    async def create_server(self, protocol_factory: Any, *args: Any, **options: Any) -> Any:
        """Create a server, as in `uvloop.Loop`; the protocol methods of its connections are measured as well."""
        return await super().create_server(functools.partial(self._protocol, protocol_factory), *args, **options)

    async def create_connection(self, protocol_factory: Any, *args: Any, **options: Any) -> Any:
        """Create a connection, as in `uvloop.Loop`; its protocol methods are measured as well."""
        return await super().create_connection(functools.partial(self._protocol, protocol_factory), *args, **options)

    def _protocol(self, factory: Callable[[], Any]) -> Any:
        """Make a protocol whose class measures its methods.

        Measured methods of the object itself would refer to it in a circle: 48 objects of each closed connection would wait
        for the garbage collector, which was most of its work.
        """
        protocol = factory()
        plain = type(protocol)
        if plain not in self._measured_classes:
            calls = {
                name: self._measured_method(getattr(plain, name)) for name in PROTOCOL_CALLS if hasattr(plain, name)
            }
            self._measured_classes[plain] = type(plain.__name__, (plain,), {"__slots__": (), **calls})
        protocol.__class__ = self._measured_classes[plain]
        return protocol

    def _measured_method(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*arguments: Any, **options: Any) -> Any:
            return self.watch.run(method, *arguments, **options)

        return call


def loop_factory(max_callback_ms: float | None) -> LoopFactory:
    """Return the factory of a process's event loop. max_callback_ms: None: nothing is measured."""
    if max_callback_ms is None:
        return uvloop.new_event_loop
    limit_s = max_callback_ms / 1000
    return lambda: cast(asyncio.AbstractEventLoop, WatchedLoop(LoopWatch(limit_s)))


def watch_of(loop: asyncio.AbstractEventLoop) -> LoopWatch | None:
    """Return the watch of a loop, or None if the loop has none."""
    return loop.watch if isinstance(loop, WatchedLoop) else None


def callback_name(callback: Any) -> str:
    """Return a readable name of a callback; for a task, its coroutine and where it waits now."""
    while isinstance(callback, functools.partial):
        callback = callback.func
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        coroutine = owner.get_coro()
        name = getattr(coroutine, "__qualname__", repr(coroutine))
        return f"task {name}{_waits(coroutine)}"
    return str(getattr(callback, "__qualname__", None) or type(callback).__qualname__)


def _waits(coroutine: Any) -> str:
    """Return the innermost coroutine of ours in which it waits; empty if it has ended."""
    place = ""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)
        if frame is not None and frame.f_code.co_filename.startswith(ROOT):
            place = _place(frame)
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)
    return f", which waits in {place}" if place else ""


def innermost(frame: FrameType | None) -> str:
    """Return the innermost function of ours that the running callback called; empty if there is none.

    The stack below `LoopWatch.run` is the loop's caller. Without that limit a sample taken just after the callback ended
    replaced the function that had worked.
    """
    while frame is not None and frame.f_code is not LoopWatch.run.__code__:
        name = frame.f_code.co_filename
        if name.startswith(ROOT) and name != __file__:
            return _place(frame)
        frame = frame.f_back
    return ""


def _plain(text: str) -> str:
    return text.replace("%", "%%")


def _place(frame: FrameType) -> str:
    file = frame.f_code.co_filename.removeprefix(ROOT).lstrip("/")
    return f"{file}:{frame.f_lineno} {frame.f_code.co_qualname}"
