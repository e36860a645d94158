"""HTTP service from the moment that an engine runs until the end.

Owns: the application and its server, the order of the end: drain, flush, suspend. Never does: start or choose an
engine. Called by: the launcher, and each API process.
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

from core_apis.server.garbage import collect_garbage
from core_apis.server.lifetime import close_engine
from core_apis.server.loop_watch import watch_of
from core_apis.server.process_limits import fit_connections, watch_files
from core_config.served.server_config import ServerConfig

if TYPE_CHECKING:
    from core_apis.context import ServingContext
    from core_apis.journal.journal import Journal
    from core_apis.server.http_server import HttpServer
    from core_frontend.async_engine import AsyncEngine
    from core_supervision.helpers.lane import Spawned

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 5.0  # time for clients to read the rest of complete answers
DEATH_NOTICE_SECONDS = 1.0  # time for probes and streams to learn of the engine's death
SLOW_IMPORTS = ("core_grammars.compiler", "core_apis.app", "core_apis.server.http_server")
"""Modules that are imported while the engine starts, and not before it has its configuration."""
NICENESS = 5  # the engine's compute threads come first
SWITCH_SECONDS = 0.001
"""Seconds for which a thread keeps the interpreter when others want it.

With Python's default of 5 ms, probes waited up to 228 ms while long answers were written in threads; with this value 39
ms.
"""


async def ready_application() -> Spawned | None:
    """Import slow modules while the process waits for something else.

    Return the process that will prepare chats, which imports its own meanwhile; None if it does not start.
    """
    for name in SLOW_IMPORTS:
        await asyncio.to_thread(importlib.import_module, name)
    from core_apis.prepare.preparer import SMALL_LANE
    from core_supervision.helpers.lane import spawn

    try:
        return await asyncio.to_thread(spawn, SMALL_LANE)
    except OSError as error:
        logger.warning("The process that prepares requests does not start (%s); it is started again later.", error)
        return None


async def serve_requests(
    settings: ServerConfig,
    listener: socket.socket,
    engine: AsyncEngine,
    events: tuple[asyncio.Event, asyncio.Event],
    on_ready: Callable[[ServingContext], None],
    journal: Journal | None = None,
    explain: Callable[[], dict[str, Any]] | None = None,
    helper: Spawned | None = None,
) -> None:
    """Serve until the first of `events` is set, then end: in good order until the second one is set, too.

    on_ready: called once, when requests are served.
    journal: stores what outlives this server; None: nothing does.
    explain: the configuration as plain values, for the page.
    helper: from `ready_application`.

    Raises EngineDeadError when there is no engine any more.
    """
    settings = fit_connections(settings)
    if journal is not None and engine.config.adapters is not None:
        await engine.adapters.refresh()  # what the journal restores names some of them
    server, context = _application(settings, engine, journal)
    context.explain = explain
    context.preparer.warm(helper)
    died = asyncio.Event()
    engine.on_death = lambda error: died.set()
    if not engine.is_running:
        died.set()
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    stop, hurry, death = watching = [asyncio.ensure_future(event.wait()) for event in (*events, died)]
    watching_files = asyncio.ensure_future(watch_files())
    reading = asyncio.ensure_future(_read_weights(context, engine))
    learning = asyncio.ensure_future(_learn_costs(context))
    collecting = asyncio.ensure_future(collect_garbage(lambda: context.drain.num_running))
    _settle_process()
    try:
        while not (server.started or serving.done()):
            await asyncio.sleep(0.005)
        if serving.done():
            serving.result()
        on_ready(context)
        if context.batches is not None:
            context.batches.begin()
        _watch_loop(context)
        engine.grammars.warm()
        await _first_of(serving, stop, death)
        if death.done():
            await _first_of(serving, stop, timeout=DEATH_NOTICE_SECONDS)
        else:
            if engine.moves is not None:
                engine.moves.keep_engines()
            await _drain(context, settings.shutdown_timeout, (serving, hurry, death))
        server.should_exit = True
        await _give_up_the_rest(context, server, engine, serving, hurry, events[1])
        await serving
    finally:
        await context.close()
        for task in (*watching, watching_files, reading, learning, collecting):
            task.cancel()
    if engine.dead_error is not None:
        raise engine.dead_error


async def _give_up_the_rest(
    context: ServingContext,
    server: HttpServer,
    engine: AsyncEngine,
    serving: asyncio.Future[None],
    hurry: asyncio.Future[Any],
    hurries: asyncio.Event,
) -> None:
    """End a server that should exit: at once what still runs, after a short wait for the last answers where nothing does."""
    if not context.drain.num_running:
        await _first_of(serving, hurry, timeout=FLUSH_SECONDS)
    if serving.done():
        return
    await context.suspend()  # the next server continues them
    await close_engine(engine, hurries)  # ends what still runs with an error
    await _first_of(serving, timeout=1.0)
    server.force_exit = True


async def _read_weights(context: ServingContext, engine: AsyncEngine) -> None:
    """Read the weights for receipts, if the server gives any."""
    if context.receipts is not None:
        await context.receipts.read_weights(engine)


async def _learn_costs(context: ServingContext) -> None:
    """Keep the forecast of quotes up to date, if the server gives any."""
    if context.quotes is not None:
        await context.quotes.keep_learning()


def _settle_process() -> None:
    """Give way to the engine, and exclude from later collections what lives as long as the process."""
    os.nice(NICENESS)
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()


async def _first_of(*tasks: asyncio.Future[Any], timeout: float | None = None) -> None:
    """Wait until one of them is done."""
    await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)


def _application(
    settings: ServerConfig, engine: AsyncEngine, journal: Journal | None
) -> tuple[HttpServer, ServingContext]:
    """Return the HTTP server, and the context of its routes, after the journal's entries were restored."""
    from core_apis.app import create_app
    from core_apis.durable.restoring import restore
    from core_apis.durable.streams import durable_streams
    from core_apis.server.http_server import HttpServer

    model = engine.config.model
    cache = msgspec.structs.replace(engine.config.cache, num_blocks=engine.ready.num_blocks)
    durable = durable_streams(journal, settings, model, engine.ready.numerics, lambda: engine.stats.weight_version)
    app = create_app(engine, settings, model, cache, durable)
    context: ServingContext = app.state.context
    restore(context)
    return HttpServer(app, settings), context


def _watch_loop(context: ServingContext) -> None:
    """Begin to measure callbacks, if that is enabled."""
    watch = watch_of(asyncio.get_running_loop())
    if watch is None:
        return
    from core_observers.families.loop_metrics import LoopCollector
    from core_observers.metrics import PREFIX

    context.metrics.registry.register(LoopCollector(PREFIX, context.model.served_names[0], watch))
    watch.begin()


async def _drain(context: ServingContext, seconds: float, ends: Iterable[asyncio.Future[Any]]) -> None:
    """Let running requests end, for at most `seconds` seconds and until one of `ends` is done.

    Meanwhile new work is refused.
    """
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
