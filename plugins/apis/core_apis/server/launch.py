"""Start and end of the server process.

Owns: the order of start (port, engine, requests) and the exit code. Never does: handle requests. Called by: `core
serve`.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from core.api.errors import EngineDeadError
from core_apis.observed.tracing import check_tracing
from core_apis.server.lifetime import ApiProcessError, LinkError, announce, close_engine, listen, unless_stopped
from core_apis.server.loop_watch import loop_factory
from core_apis.server.own_middleware import load_middleware
from core_apis.server.service import ready_application, serve_requests
from core_apis.server.sockets import check_tls_files, close_listener, open_listener
from core_apis.server.stop_signals import StopSignals
from core_config.explained import explained
from core_config.served.server_config import JournalSettings
from core_observers.logging import SERVER_LIBRARIES, setup_logging

if TYPE_CHECKING:
    from core_apis.context import ServingContext
    from core_apis.journal.journal import Journal
    from core_config.resolve import Resolution
    from core_frontend.async_engine import AsyncEngine
    from core_supervision.child import EngineProcess
    from core_supervision.helpers.lane import Spawned

Started = tuple["AsyncEngine", "Spawned | None", Callable[[], dict[str, Any]]]
"""An engine, the process that prepares chats, and a function that returns the engine's configuration as plain values."""


def serve(resolution: Resolution, process: EngineProcess, signals: StopSignals) -> int:
    """Serve until a signal (exit code 0), or until the engine or an API process dies for good or none starts (1).

    process: of the engine, already spawned.

    Raises UserError, before the engine starts, for a port in use, unreadable TLS files, and
    PluginError.
    """
    setup_logging(process="server", libraries=SERVER_LIBRARIES, config=resolution.server.log_config)
    check_tls_files(resolution.server)
    check_tracing(resolution.server.traces)
    load_middleware(resolution.server.middleware)
    listener = open_listener(resolution.server)
    with listener, asyncio.Runner(loop_factory=loop_factory(resolution.server.max_callback_ms)) as runner:
        try:
            runner.run(_main(resolution)(resolution, listener, process, signals))
            return 0
        except (EngineDeadError, ApiProcessError, LinkError) as error:
            subject = "the engine died: " if isinstance(error, EngineDeadError) else ""
            print(f"core serve: {subject}{error}", file=sys.stderr, flush=True)
            return 1
        finally:
            runner.close()  # the loop restores signal handlers when it closes
            close_listener(resolution.server)
            signals.ignore()


def _main(resolution: Resolution) -> Callable[..., Coroutine[Any, Any, None]]:
    """Return the main coroutine: this process with its own engine or another command's, or several processes under a
    supervisor.
    """
    if resolution.server.remote is not None:
        return _serve_apart
    if resolution.server.api_server_count == 1:
        return _serve
    from core_apis.processes.supervisor import supervise

    return supervise


async def _serve(resolution: Resolution, listener: socket.socket, process: EngineProcess, signals: StopSignals) -> None:
    async def start() -> Started:
        return *await start_engine(resolution, process), partial(explained, resolution)

    await _serve_once_started(start, resolution, listener, signals)


async def _serve_apart(
    resolution: Resolution, listener: socket.socket, process: EngineProcess, signals: StopSignals
) -> None:
    """Serve with engines of other commands."""
    from core_apis.remote.api_server import start_api_server

    async def start() -> Started:
        engine, helper, told = await start_api_server(resolution, process)
        return engine, helper, lambda: told

    await _serve_once_started(start, resolution, listener, signals)


async def _serve_once_started(
    start: Callable[[], Coroutine[Any, Any, Started]],
    resolution: Resolution,
    listener: socket.socket,
    signals: StopSignals,
) -> None:
    begin = time.perf_counter()
    events = listen(signals)
    journal = _open_journal(resolution.server.journal)
    try:
        started = await unless_stopped(start(), events[0])
        if started is not None:
            await _serve_with(started, resolution, listener, events, journal, begin)
    finally:
        if journal is not None:
            await journal.close()


def _open_journal(settings: JournalSettings | None) -> Journal | None:
    """Return the journal, locked for this process. Raises UserError if its directory cannot be used."""
    if settings is None:
        return None
    from core_apis.journal.journal import Journal

    return Journal(settings.directory, settings.max_bytes)


async def _serve_with(
    started: Started,
    resolution: Resolution,
    listener: socket.socket,
    events: tuple[asyncio.Event, asyncio.Event],
    journal: Journal | None,
    begin: float,
) -> None:
    """Serve with an engine, and end it. begin: start time of the command, by `time.perf_counter()`."""
    engine, helper, explain = started

    def on_ready(context: ServingContext) -> None:
        name = context.model.served_names[0]
        announce(listener, resolution.server, name, engine.ready.phases, begin)

    try:
        await serve_requests(resolution.server, listener, engine, events, on_ready, journal, explain, helper)
    finally:
        await close_engine(engine, events[1])


async def start_engine(resolution: Resolution, process: EngineProcess) -> tuple[AsyncEngine, Spawned | None]:
    """Start the engine while the application is made ready (see `ready_application`). Raises as `AsyncEngine.start`."""
    from core_frontend.async_engine import AsyncEngine

    starting = asyncio.ensure_future(AsyncEngine.start(resolution, process=process))
    try:
        await _until_configured(process, starting)
        helper = await ready_application()
        return await starting, helper
    except BaseException:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        raise


async def _until_configured(process: EngineProcess, starting: asyncio.Future[AsyncEngine]) -> None:
    """Wait until the engine has its configuration, or its start is over."""
    configured = asyncio.ensure_future(process.configured.wait())
    try:
        await asyncio.wait((starting, configured), return_when=asyncio.FIRST_COMPLETED)
    finally:
        configured.cancel()
