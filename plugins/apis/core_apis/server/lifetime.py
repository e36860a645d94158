"""The lifecycle of a server process: its messages once it serves, its reaction to signals, the end of its engine.

Owns: the events of signals, a start that they interrupt, the end of an engine. Never does: serve. Called by: the
launcher, the supervisor and its API processes.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from core.api.errors import CoreError
from core_apis.server.sockets import url
from core_apis.server.stop_signals import StopSignals
from core_config.served.server_config import ServerConfig

logger = logging.getLogger(__name__)

T = TypeVar("T")
Phases = Sequence[tuple[str, float]]


class ApiProcessError(CoreError):
    """An API process died too often, or before it had ever served; the message says how."""


class LinkError(CoreError):
    """A frontend and its engine cannot connect; the message says why."""


def on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report an uncaught exception: one sentence if the system refused something, a traceback if the fault is ours."""
    error = context.get("exception")
    if isinstance(error, OSError):
        logger.error("%s: %s", context["message"], error)
    else:
        logger.error("%s", context["message"], exc_info=error)


def listen(signals: StopSignals) -> tuple[asyncio.Event, asyncio.Event]:
    """Return events that the first and the second signal set from now on. Errors of the loop are reported as well."""
    asyncio.get_running_loop().set_exception_handler(on_loop_error)
    events = asyncio.Event(), asyncio.Event()
    signals.listen(*events)
    return events


async def unless_stopped(start: Coroutine[Any, Any, T], stop: asyncio.Event) -> T | None:
    """Return the result of `start`; None if `stop` is set first, in which case `start` is cancelled and cleaned up."""
    stopping = asyncio.ensure_future(stop.wait())
    starting = asyncio.ensure_future(start)
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        return starting.result() if starting.done() else None
    finally:
        stopping.cancel()
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)


def announce(listener: socket.socket, settings: ServerConfig, served_name: str, phases: Phases, begin: float) -> None:
    """Log that requests are served, and how long the start took.

    phases: of the engine's start. begin: of the whole start, by `time.perf_counter()`.
    """
    times = [f"{name} {seconds:.2f} s" for name, seconds in (*phases, ("total", time.perf_counter() - begin))]
    print(f"Serving {served_name} at {url(listener, settings)} ({', '.join(times)})", flush=True)


class EngineHolder(Protocol):
    """An owner that ends an engine."""

    async def close(self) -> None:
        """End the engine in good order."""
        ...

    def kill(self) -> None:
        """Kill the engine; `close` then has nothing to wait for."""
        ...


async def close_engine(engine: EngineHolder, hurry: asyncio.Event) -> None:
    """End the engine in good order, which takes seconds if it saves its cache; at once if `hurry` is set."""
    closing = asyncio.ensure_future(engine.close())
    hurrying = asyncio.ensure_future(hurry.wait())
    await asyncio.wait((closing, hurrying), return_when=asyncio.FIRST_COMPLETED)
    hurrying.cancel()
    if not closing.done():
        engine.kill()
    await closing
