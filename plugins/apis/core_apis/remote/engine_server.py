"""Engines without an HTTP server: `core serve MODEL --headless`.

Owns: the order of its start and end, and the exit code. Never does: answer HTTP requests. Called by: `core serve`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import uvloop

from core.api.errors import CoreError, EngineDeadError
from core_apis.processes.api_messages import EngineEvent
from core_apis.processes.supervised_engine import SupervisedEngine, start_engines
from core_apis.remote.agreement import hello
from core_apis.remote.engine_link import EngineLink
from core_apis.server.lifetime import LinkError, close_engine, listen
from core_apis.server.stop_signals import StopSignals
from core_config.served.server_config import RemoteSettings
from core_frontend.group.replacements import SETTLE_S
from core_observers.logging import setup_logging

if TYPE_CHECKING:
    from core_config.resolve import Resolution
    from core_supervision.child import EngineProcess

logger = logging.getLogger(__name__)

DRAIN_POLL_S = 0.05
RELIEF_S = 0.2
"""Seconds in which the API server has learned that an engine ends, and sends it nothing more."""


def serve_engine(resolution: Resolution, process: EngineProcess, signals: StopSignals) -> int:
    """Run the engines until a signal (exit code 0), or until all die for good or one has no API server (1).

    process: of the first engine, already spawned. Raises UserError and PluginError as the start of an engine does.
    """
    setup_logging(process="headless", config=resolution.server.log_config)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_run(resolution, process, signals))
            return 0
        except (EngineDeadError, LinkError) as error:
            subject = "the engine died: " if isinstance(error, EngineDeadError) else ""
            print(f"core serve: {subject}{error}", file=sys.stderr, flush=True)
            return 1
        finally:
            runner.close()  # the loop restores signal handlers when it closes
            signals.ignore()


async def _run(resolution: Resolution, process: EngineProcess, signals: StopSignals) -> None:
    assert resolution.server.remote is not None
    await EngineServer(resolution, resolution.server.remote).run(process, signals)


class EngineServer:
    """Engines of one command, each with a link to the API server. resolution: of the engines. settings: of the link."""

    def __init__(self, resolution: Resolution, settings: RemoteSettings) -> None:
        self._resolution = resolution
        self._settings = settings
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._engines: list[SupervisedEngine] = []
        self._links: list[EngineLink] = []
        self._linking: list[asyncio.Future[Any]] = []
        self._is_draining = False
        self._replacing: dict[int, asyncio.Task[None]] = {}
        for number in range(resolution.engine.data_parallel_size):
            asked = self._asked_to_end if settings.group_size > 1 else None
            engine = SupervisedEngine(self._report, partial(self._fail, number), number, asked)
            self._engines.append(engine)
            self._links.append(EngineLink(settings, hello(resolution, number), engine.forgive))

    async def run(self, process: EngineProcess, signals: StopSignals) -> None:
        """Run until a signal. Any other end raises its error."""
        first, second = listen(signals)
        stopping = asyncio.ensure_future(first.wait())
        self._linking = [asyncio.ensure_future(link.run()) for link in self._links]
        working = asyncio.ensure_future(self._start_and_fail(process))
        linking = asyncio.ensure_future(self._until_unlinked())
        ends = (stopping, linking, working)
        last_word = "it was asked to end"
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if stopping not in done:
                done.pop().result()
            await self._drain(second)
        except CoreError as error:
            last_word = str(error)
            raise
        finally:
            for engine, link in zip(self._engines, self._links, strict=True):
                engine.leave()
                link.say_goodbye(last_word)
            tasks = (*ends, *self._linking, *self._replacing.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await close_engine(self, second)

    async def close(self) -> None:
        """End all engines."""
        await asyncio.gather(*(engine.close() for engine in self._engines))

    def kill(self) -> None:
        """Kill all engines at once, while `close` waits for them or before."""
        for engine in self._engines:
            engine.kill()

    async def _until_unlinked(self) -> None:
        """Wait for the first link that fails. That of an engine that is gone for good is cancelled, which is no failure."""
        done, _ = await asyncio.wait(self._linking, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            if not task.cancelled():
                task.result()

    async def _start_and_fail(self, process: EngineProcess) -> None:
        """Start the engines, and wait for the end of all, which is raised as an error."""
        begin = time.perf_counter()
        started = await start_engines(self._engines, self._resolution, process)
        if started is not self._resolution:
            self._resolution = started
            for number, link in enumerate(self._links):
                link.renew(hello(started, number))
        self._announce(begin)
        await self._failed

    def _asked_to_end(self, number: int) -> None:
        """Replace an engine to which somebody has sent SIGTERM."""
        running = self._replacing.get(number)
        if not self._is_draining and (running is None or running.done()):
            self._replacing[number] = asyncio.create_task(self._replace(number))

    async def _replace(self, number: int) -> None:
        """Let the requests of one engine go on in others, or end here, for as long as a server would; then replace it."""
        await asyncio.sleep(SETTLE_S)
        if self._is_draining:
            return
        engine, rank = self._engines[number], self._links[number].rank
        logger.warning("Engine %d was asked to end (SIGTERM), and ends once its requests have left it.", rank)
        self._links[number].say_leaving()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._resolution.server.shutdown_timeout):
                await asyncio.sleep(RELIEF_S)
                while not await engine.is_through():
                    await asyncio.sleep(DRAIN_POLL_S)
        if not self._is_draining:
            await engine.replace()

    async def _drain(self, hurry: asyncio.Event) -> None:
        """Let running requests go on in engines of other commands, or end here, for as long as a server would."""
        self._is_draining = True
        for link in self._links:
            link.say_leaving()
        ending = asyncio.ensure_future(self._until_through())
        hurrying = asyncio.ensure_future(hurry.wait())
        patience = self._resolution.server.shutdown_timeout
        await asyncio.wait((ending, hurrying), timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        for task in (ending, hurrying):
            task.cancel()
        await asyncio.gather(ending, hurrying, return_exceptions=True)

    async def _until_through(self) -> None:
        while not all([await engine.is_through() for engine in self._engines]):
            await asyncio.sleep(DRAIN_POLL_S)

    def _announce(self, begin: float) -> None:
        phases = [*self._engines[0].phases, ("total", time.perf_counter() - begin)]
        times = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in phases)
        name = self._resolution.engine.model.served_names[0]
        print(
            f"{self._shown()} of {name} for the API server at {self._settings.address}:{self._settings.port} ({times})",
            flush=True,
        )

    def _shown(self) -> str:
        ranks = [link.rank for link in self._links]
        if self._settings.group_size == 1:
            return "Engine"
        named = f"Engine {ranks[0]}" if len(ranks) == 1 else f"Engines {ranks[0]} to {ranks[-1]}"
        return f"{named} of {self._settings.group_size}"

    def _report(self, news: EngineEvent) -> None:
        self._links[news.engine].tell(news)

    def _fail(self, number: int, error: EngineDeadError) -> None:
        """Note that this engine is gone for good; without any engine the command ends with `error`."""
        if all(engine.gone is not None for engine in self._engines):
            if not self._failed.done():
                self._failed.set_exception(error)
            return
        logger.error("Engine %d stays away: %s\nThe others go on.", number, error)
        self._links[number].say_goodbye(str(error))
        self._linking[number].cancel()
