"""Starts the server process and ends it.

Owns: the order of start (port, engine, application, requests) and of shutdown, the exit code.
Never does: handle requests. Called by: `core serve`.
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
from typing import TYPE_CHECKING, Any

import msgspec
import uvloop

from core.api.errors import EngineDeadError
from core.observe.logging import setup_logging
from core.serving.chat_template import read_template
from core.serving.process_limits import fit_connections, watch_files
from core.serving.sockets import bind, check_tls_files, url
from core.serving.stop_signals import StopSignals

if TYPE_CHECKING:
    from core.api.config import JournalSettings
    from core.config.resolve import Resolution
    from core.engine.async_engine import AsyncEngine
    from core.engine.child import EngineProcess
    from core.journal.journal import Journal
    from core.serving.context import ServingContext
    from core.serving.http_server import HttpServer

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 5.0  # for running requests after a signal
DEATH_NOTICE_SECONDS = 1.0  # how long probes and streams may still learn of the engine's death
NICENESS = 5  # the engine's compute threads come first


def serve(resolution: Resolution, process: EngineProcess, signals: StopSignals) -> int:
    """Serve until a signal (0) or until the engine dies (1). process: of the engine, spawned already.

    Raises UserError, before the engine starts, for a port in use, unreadable TLS files or chat template, and PluginError.
    """
    setup_logging(process="server", others=("asyncio", "uvicorn.error"))
    check_tls_files(resolution.server)
    read_template(resolution.server.chat_template)
    listener = bind(resolution.server.host, resolution.server.port)
    journal = _open_journal(resolution.server.journal)
    with listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(_serve(resolution, listener, process, signals, journal))
        except EngineDeadError as error:
            print(f"core serve: the engine died: {error}", file=sys.stderr, flush=True)
            return 1
        finally:
            runner.close()  # the loop gives signals back
            signals.ignore()


def _open_journal(settings: JournalSettings | None) -> Journal | None:
    if settings is None:
        return None
    from core.journal.journal import Journal

    return Journal(settings.directory, settings.max_bytes)


def on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report an uncaught exception: a sentence when the system refused something, a traceback when the fault is ours."""
    error = context.get("exception")
    if isinstance(error, OSError):
        logger.error("%s: %s", context["message"], error)
    else:
        logger.error("%s", context["message"], exc_info=error)


async def _serve(
    resolution: Resolution,
    listener: socket.socket,
    process: EngineProcess,
    signals: StopSignals,
    journal: Journal | None,
) -> int:
    begin = time.perf_counter()
    asyncio.get_running_loop().set_exception_handler(on_loop_error)
    first, second = asyncio.Event(), asyncio.Event()
    signals.listen(first, second)
    stopping = asyncio.ensure_future(first.wait())
    starting = asyncio.ensure_future(_start_engine(resolution, process))
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            return 0
        engine = starting.result()
    finally:
        stopping.cancel()
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
    try:
        return await _run(resolution, listener, engine, (first, second), begin, journal)
    finally:
        await engine.close()


async def _start_engine(resolution: Resolution, process: EngineProcess) -> AsyncEngine:
    from core.engine.async_engine import AsyncEngine

    starting = asyncio.ensure_future(AsyncEngine.start(resolution, process=process))
    try:
        for name in ("core.serving.app", "core.serving.http_server"):  # slow to import, so while the engine starts
            await asyncio.to_thread(importlib.import_module, name)
        return await starting
    except BaseException:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        raise


async def _run(
    resolution: Resolution,
    listener: socket.socket,
    engine: AsyncEngine,
    signals: tuple[asyncio.Event, asyncio.Event],
    begin: float,
    journal: Journal | None,
) -> int:
    from core.serving.app import create_app
    from core.serving.durable.restoring import restore
    from core.serving.durable.streams import durable_streams
    from core.serving.http_server import HttpServer

    model = engine.config.model
    cache = msgspec.structs.replace(engine.config.cache, num_blocks=engine.ready.num_blocks)
    settings = fit_connections(resolution.server)
    durable = durable_streams(journal, settings, model, engine.ready.numerics)
    app = create_app(engine, settings, model, cache, durable)
    context = app.state.context
    server = HttpServer(app, settings)
    died = asyncio.Event()
    engine.on_death = lambda error: died.set()
    if not engine.is_running:
        died.set()
    restore(context)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    watching = [asyncio.ensure_future(event.wait()) for event in (*signals, died)]
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
        phases = [*engine.ready.phases, ("total", time.perf_counter() - begin)]
        times = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in phases)
        print(f"Serving {model.served_names[0]} at {url(listener, resolution.server)} ({times})", flush=True)
        await asyncio.wait((serving, stop, death), return_when=asyncio.FIRST_COMPLETED)
        if death.done():
            await asyncio.wait((serving, stop), timeout=DEATH_NOTICE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        await _shut_down(server, serving, hurry, engine, context)
    finally:
        await context.close()
        for task in (*watching, watching_files):
            task.cancel()
    if engine.dead_error is not None:
        raise engine.dead_error
    return 0


async def _shut_down(
    server: HttpServer,
    serving: asyncio.Future[None],
    hurry: asyncio.Future[Any],
    engine: AsyncEngine,
    context: ServingContext,
) -> None:
    """Take no more connections, let running requests end for a while, then end them with an error object.

    What the journal keeps ends without one: the next server goes on with it.
    """
    server.should_exit = True
    await asyncio.wait((serving, hurry), timeout=DRAIN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    if not serving.done():
        await context.suspend()
        await engine.close()
        await asyncio.wait((serving,), timeout=1.0)
        server.force_exit = True
    await serving
