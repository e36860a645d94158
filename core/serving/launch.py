"""Starts the server process and ends it.

Owns: the order of start (port, engine, application, requests) and of shutdown, the exit code.
Never does: handle requests. Called by: `core serve`; the supervisor and its API processes share its parts.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
import uvloop

from core.api.config import JournalSettings, ServerConfig
from core.api.errors import CoreError, EngineDeadError
from core.observe.logging import setup_logging
from core.serving.chat_template import read_template
from core.serving.process_limits import fit_connections, watch_files
from core.serving.sockets import bind, check_tls_files, url
from core.serving.stop_signals import StopSignals

if TYPE_CHECKING:
    from core.config.resolve import Resolution
    from core.engine.async_engine import AsyncEngine
    from core.engine.child import EngineProcess
    from core.journal.journal import Journal
    from core.serving.context import ServingContext
    from core.serving.http_server import HttpServer

logger = logging.getLogger(__name__)

T = TypeVar("T")
Phases = Sequence[tuple[str, float]]

FLUSH_SECONDS = 5.0  # for clients to read the rest of answers that are complete
DEATH_NOTICE_SECONDS = 1.0  # how long probes and streams may still learn of the engine's death
SLOW_IMPORTS = ("core.grammars.compiler", "core.serving.app", "core.serving.http_server")
"""Imported while the engine starts, and not before it has its configuration."""
NICENESS = 5  # the engine's compute threads come first


class ApiProcessError(CoreError):
    """An API process died too often, or before it had ever served; the sentence says how."""


def serve(resolution: Resolution, process: EngineProcess, signals: StopSignals) -> int:
    """Serve until a signal (0) or until the engine, or an API process, dies for good (1).

    process: of the engine, spawned already.

    Raises UserError, before the engine starts, for a port in use, unreadable TLS files or chat template, and PluginError.
    """
    setup_logging(process="server", others=("asyncio", "uvicorn.error"))
    check_tls_files(resolution.server)
    read_template(resolution.server.chat_template)
    listener = bind(resolution.server.host, resolution.server.port)
    with listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_main(resolution)(resolution, listener, process, signals))
            return 0
        except (EngineDeadError, ApiProcessError) as error:
            subject = "the engine died: " if isinstance(error, EngineDeadError) else ""
            print(f"core serve: {subject}{error}", file=sys.stderr, flush=True)
            return 1
        finally:
            runner.close()  # the loop gives signals back
            signals.ignore()


def _main(resolution: Resolution) -> Callable[..., Coroutine[Any, Any, None]]:
    """What serves: this process, or several under a supervisor."""
    if resolution.server.api_server_count == 1:
        return _serve
    from core.serving.supervisor import supervise

    return supervise


def on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report an uncaught exception: a sentence when the system refused something, a traceback when the fault is ours."""
    error = context.get("exception")
    if isinstance(error, OSError):
        logger.error("%s: %s", context["message"], error)
    else:
        logger.error("%s", context["message"], exc_info=error)


async def _serve(resolution: Resolution, listener: socket.socket, process: EngineProcess, signals: StopSignals) -> None:
    begin = time.perf_counter()
    events = listen(signals)
    journal = _open_journal(resolution.server.journal)
    try:
        engine = await unless_stopped(_start_engine(resolution, process), events[0])
        if engine is not None:
            await _serve_with(engine, resolution.server, listener, events, journal, begin)
    finally:
        if journal is not None:
            await journal.close()


def _open_journal(settings: JournalSettings | None) -> Journal | None:
    """The journal, locked for this process. Raises UserError where its directory cannot be used."""
    if settings is None:
        return None
    from core.journal.journal import Journal

    return Journal(settings.directory, settings.max_bytes)


async def _serve_with(
    engine: AsyncEngine,
    settings: ServerConfig,
    listener: socket.socket,
    events: tuple[asyncio.Event, asyncio.Event],
    journal: Journal | None,
    begin: float,
) -> None:
    """Serve with an engine of our own, and end it. begin: of the start, as `time.perf_counter()` says."""

    def on_ready(context: ServingContext) -> None:
        name = context.model.served_names[0]
        announce(listener, settings, name, engine.ready.phases, begin)

    try:
        await serve_requests(settings, listener, engine, events, on_ready, journal)
    finally:
        await close_engine(engine, events[1])


def listen(signals: StopSignals) -> tuple[asyncio.Event, asyncio.Event]:
    """Events that the first and the second signal set from now on. Errors of the loop are reported as well."""
    asyncio.get_running_loop().set_exception_handler(on_loop_error)
    events = asyncio.Event(), asyncio.Event()
    signals.listen(*events)
    return events


async def unless_stopped(start: Coroutine[Any, Any, T], stop: asyncio.Event) -> T | None:
    """The result of `start`; None when `stop` is set first, and then nothing of it is left."""
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


async def _start_engine(resolution: Resolution, process: EngineProcess) -> AsyncEngine:
    from core.engine.async_engine import AsyncEngine

    starting = asyncio.ensure_future(AsyncEngine.start(resolution, process=process))
    try:
        await _until_configured(process, starting)
        await import_application()
        return await starting
    except BaseException:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        raise


async def _until_configured(process: EngineProcess, starting: asyncio.Future[AsyncEngine]) -> None:
    """Until the engine has its configuration, or its start is over."""
    configured = asyncio.ensure_future(process.configured.wait())
    try:
        await asyncio.wait((starting, configured), return_when=asyncio.FIRST_COMPLETED)
    finally:
        configured.cancel()


async def import_application() -> None:
    """What is slow to import, while something else is waited for."""
    for name in SLOW_IMPORTS:
        await asyncio.to_thread(importlib.import_module, name)


async def serve_requests(
    settings: ServerConfig,
    listener: socket.socket,
    engine: AsyncEngine,
    events: tuple[asyncio.Event, asyncio.Event],
    on_ready: Callable[[ServingContext], None],
    journal: Journal | None = None,
) -> None:
    """Serve until the first of `events` is set, and then end: in good order until the second one is set, too.

    on_ready: called once, when requests are served.
    journal: keeps what outlives this server; None: nothing does.

    Raises EngineDeadError when there is no engine any more.
    """
    settings = fit_connections(settings)
    server, context = _application(settings, engine, journal)
    died = asyncio.Event()
    engine.on_death = lambda error: died.set()
    if not engine.is_running:
        died.set()
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    watching = [asyncio.ensure_future(event.wait()) for event in (*events, died)]
    stop, hurry, death = watching
    watching_files = asyncio.ensure_future(watch_files())
    os.nice(NICENESS)
    gc.collect()
    gc.freeze()
    try:
        while not (server.started or serving.done()):
            await asyncio.sleep(0.005)
        if serving.done():
            serving.result()
        on_ready(context)
        engine.grammars.warm()
        await asyncio.wait((serving, stop, death), return_when=asyncio.FIRST_COMPLETED)
        if death.done():
            await asyncio.wait((serving, stop), timeout=DEATH_NOTICE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        else:
            await _drain(context, settings.shutdown_timeout, (serving, hurry, death))
        server.should_exit = True
        if not context.drain.num_running:
            await asyncio.wait((serving, hurry), timeout=FLUSH_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            await context.suspend()  # the next server goes on with it
            await close_engine(engine, events[1])  # which ends what still runs with an error
            await asyncio.wait((serving,), timeout=1.0)
            server.force_exit = True
        await serving
    finally:
        await context.close()
        for task in (*watching, watching_files):
            task.cancel()
    if engine.dead_error is not None:
        raise engine.dead_error


def _application(
    settings: ServerConfig, engine: AsyncEngine, journal: Journal | None
) -> tuple[HttpServer, ServingContext]:
    """The HTTP server, and the context of its routes, in which everything that the journal kept goes on."""
    from core.serving.app import create_app
    from core.serving.durable.restoring import restore
    from core.serving.durable.streams import durable_streams
    from core.serving.http_server import HttpServer

    model = engine.config.model
    cache = msgspec.structs.replace(engine.config.cache, num_blocks=engine.ready.num_blocks)
    durable = durable_streams(journal, settings, model, engine.ready.numerics)
    app = create_app(engine, settings, model, cache, durable)
    context: ServingContext = app.state.context
    restore(context)
    return HttpServer(app, settings), context


def announce(listener: socket.socket, settings: ServerConfig, served_name: str, phases: Phases, begin: float) -> None:
    """Say that requests are served, and what the start took.

    phases: of the engine's start. begin: of the whole start, as `time.perf_counter()` says.
    """
    times = [f"{name} {seconds:.2f} s" for name, seconds in (*phases, ("total", time.perf_counter() - begin))]
    print(f"Serving {served_name} at {url(listener, settings)} ({', '.join(times)})", flush=True)


async def _drain(context: ServingContext, seconds: float, ends: Iterable[asyncio.Future[Any]]) -> None:
    """Let what runs end, for at most `seconds` seconds and until one of `ends` is done. Meanwhile new work is refused."""
    drain = context.drain
    drain.begin(seconds)
    logger.info(
        "Shutting down. Requests that run: %d; they have %g s (--shutdown-timeout). A second signal ends them at once.",
        *(drain.num_running, seconds),
    )
    idle = asyncio.ensure_future(context.until_idle())
    await asyncio.wait((idle, *ends), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    if not idle.done():
        idle.cancel()
        logger.warning("Requests that are ended now, since they still run: %d.", drain.num_running)


class EngineHolder(Protocol):
    """Who ends an engine."""

    async def close(self) -> None:
        """In good order."""
        ...

    def kill(self) -> None:
        """At once; `close` then has nothing to wait for."""
        ...


async def close_engine(engine: EngineHolder, hurry: asyncio.Event) -> None:
    """End the engine in good order, which takes seconds when it saves its cache; at once when somebody is in a hurry."""
    closing = asyncio.ensure_future(engine.close())
    hurrying = asyncio.ensure_future(hurry.wait())
    await asyncio.wait((closing, hurrying), return_when=asyncio.FIRST_COMPLETED)
    hurrying.cancel()
    if not closing.done():
        engine.kill()
    await closing
