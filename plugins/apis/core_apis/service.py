"""HTTP requests are served, from the moment that an engine runs until the end.

Owns: the application and its server, the order of the end: drain, flush, suspend. Never does: start or choose an engine.
Called by: the launcher, and each API process.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from core_apis.garbage import collect_between_requests
from core_apis.lifetime import close_engine
from core_apis.loop_watch import watch_of
from core_apis.process_limits import fit_connections, watch_files
from core_config.server_config import ServerConfig

if TYPE_CHECKING:
    from core_apis.context import ServingContext
    from core_apis.http_server import HttpServer
    from core_apis.journal.journal import Journal
    from core_frontend.async_engine import AsyncEngine

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 5.0  # for clients to read the rest of answers that are complete
DEATH_NOTICE_SECONDS = 1.0  # how long probes and streams may still learn of the engine's death
SLOW_IMPORTS = ("core_grammars.compiler", "core_apis.app", "core_apis.http_server")
"""Imported while the engine starts, and not before it has its configuration."""
NICENESS = 5  # the engine's compute threads come first
SWITCH_SECONDS = 0.001
"""For which a thread keeps the interpreter when others want it. With 5 ms, Python's own, probes waited up to 228 ms while long
answers were written in threads; with this 39 ms."""


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
    explain: Callable[[], dict[str, Any]] | None = None,
) -> None:
    """Serve until the first of `events` is set, and then end: in good order until the second one is set, too.

    on_ready: called once, when requests are served.
    journal: keeps what outlives this server; None: nothing does.
    explain: the configuration as plain values, for the page.

    Raises EngineDeadError when there is no engine any more.
    """
    settings = fit_connections(settings)
    server, context = _application(settings, engine, journal)
    context.explain = explain
    died = asyncio.Event()
    engine.on_death = lambda error: died.set()
    if not engine.is_running:
        died.set()
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    watching = [asyncio.ensure_future(event.wait()) for event in (*events, died)]
    stop, hurry, death = watching
    watching_files = asyncio.ensure_future(watch_files())
    collecting = asyncio.ensure_future(collect_between_requests(lambda: context.drain.num_running))
    os.nice(NICENESS)
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    try:
        while not (server.started or serving.done()):
            await asyncio.sleep(0.005)
        if serving.done():
            serving.result()
        on_ready(context)
        _watch_loop(context)
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
        for task in (*watching, watching_files, collecting):
            task.cancel()
    if engine.dead_error is not None:
        raise engine.dead_error


def _application(
    settings: ServerConfig, engine: AsyncEngine, journal: Journal | None
) -> tuple[HttpServer, ServingContext]:
    """The HTTP server, and the context of its routes, in which everything that the journal kept goes on."""
    from core_apis.app import create_app
    from core_apis.durable.restoring import restore
    from core_apis.durable.streams import durable_streams
    from core_apis.http_server import HttpServer

    model = engine.config.model
    cache = msgspec.structs.replace(engine.config.cache, num_blocks=engine.ready.num_blocks)
    durable = durable_streams(journal, settings, model, engine.ready.numerics, lambda: engine.stats.weight_version)
    app = create_app(engine, settings, model, cache, durable)
    context: ServingContext = app.state.context
    restore(context)
    return HttpServer(app, settings), context


def _watch_loop(context: ServingContext) -> None:
    """Begin to measure callbacks, where that is asked for."""
    watch = watch_of(asyncio.get_running_loop())
    if watch is None:
        return
    from core_observers.loop_metrics import LoopCollector
    from core_observers.metrics import PREFIX

    context.metrics.registry.register(LoopCollector(PREFIX, context.model.served_names[0], watch))
    watch.begin()


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
