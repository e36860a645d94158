"""The parent of several API processes: `core serve --api-server-count N`.

Owns: the listening socket and the API processes: their start, their restart after a death, their end. Never does:
answer HTTP requests, or look after the engine (`SupervisedEngine` does). Called by: the launcher.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

from core.api.config import RestartConfig
from core.api.errors import CoreError, EngineDeadError
from core_apis.processes.api_child import ApiChild
from core_apis.processes.api_messages import (
    Begin,
    EngineEvent,
    Explained,
    MetricsReply,
    MetricsRequest,
    MissedCall,
    OperatorOrder,
    OrderDone,
    Serving,
)
from core_apis.processes.metrics_rounds import MetricsRounds
from core_apis.processes.order_rounds import OrderRounds
from core_apis.processes.shared_media import shared_media, with_shared_media
from core_apis.processes.shares import engine_share, server_share
from core_apis.processes.supervised_engine import SupervisedEngine, start_engines
from core_apis.server.lifetime import ApiProcessError, announce, close_engine, listen, unless_stopped
from core_apis.server.service import DEATH_NOTICE_SECONDS, FLUSH_SECONDS
from core_apis.sessions.directory import directory_of_sessions
from core_config.explained import explained
from core_supervision.revival import Reviver

if TYPE_CHECKING:
    from core_apis.server.stop_signals import StopSignals
    from core_config.resolve import Resolution
    from core_supervision.child import EngineProcess

logger = logging.getLogger(__name__)

GRACE_S = 3.0
"""Seconds that API processes have for their own end, in addition to the time for running requests."""


async def supervise(
    resolution: Resolution, listener: socket.socket, process: EngineProcess, signals: StopSignals
) -> None:
    """Serve until a signal. Raises EngineDeadError when there is no engine any more, ApiProcessError."""
    begin = time.perf_counter()
    first, second = listen(signals)
    supervisor = Supervisor(resolution, listener)
    try:
        started = await unless_stopped(supervisor.start(process), first)
        if started is not None:
            served_name = started.engine.model.served_names[0]
            phases = supervisor.engines[0].phases
            await supervisor.run(first, second, lambda: announce(listener, started.server, served_name, phases, begin))
    finally:
        await close_engine(supervisor, second)


class Supervisor:
    """The supervisor of API processes. listener: shared by all of them. engines: used by all of them."""

    def __init__(self, resolution: Resolution, listener: socket.socket) -> None:
        count = resolution.engine.data_parallel_size
        self.engines = [
            SupervisedEngine(self._send_event, self._lose_engine, number, self._asked_to_end if count > 1 else None)
            for number in range(count)
        ]
        self._resolution = resolution
        self._listener = listener
        self._media = shared_media(resolution.engine)
        self._children: dict[int, ApiChild] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._rounds = MetricsRounds()
        started = resolution.engine.data_parallel_started or count
        self._orders = OrderRounds(self.engines, self._begun, range(started, count))
        self._asked: set[asyncio.Task[None]] = set()
        self._all_serve = asyncio.Event()
        self._failed = asyncio.Event()
        self._failure: CoreError | None = None
        self._ending = False

    async def start(self, process: EngineProcess) -> Resolution:
        """Start the engine in its process, and the API processes meanwhile. Return the resolution, which a fallback may
        have changed.

        Raises UserError, PluginError and EngineDeadError as the start of an engine does.
        """
        count = self._resolution.server.api_server_count
        self._keepers = [asyncio.create_task(self._keep(number)) for number in range(count)]
        self._resolution = await start_engines(self.engines, self._resolution, process)
        return self._resolution

    async def run(self, first: asyncio.Event, second: asyncio.Event, on_ready: Callable[[], None]) -> None:
        """Keep as many processes as wanted until `first`, then end them: in good order until `second`.

        on_ready: called once, when all serve.
        """
        events = (first, self._failed, self._all_serve)
        stop, failed, serving = waiting = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                on_ready()
            await asyncio.wait((stop, failed), return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                # Probes and streams can still learn of the death, unless a signal ends this wait.
                await asyncio.wait({stop}, timeout=DEATH_NOTICE_SECONDS)
            await self._end_children(second)
        finally:
            for task in waiting:
                task.cancel()
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """End everything that still runs."""
        self._ending = True
        for child in self._children.values():
            child.kill()
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await self._orders.close()
        await asyncio.gather(*(engine.close() for engine in self.engines))
        if self._media is not None:
            os.close(self._media)
            self._media = None

    def kill(self) -> None:
        """Kill the engine process at once, while `close` waits for it or before."""
        for engine in self.engines:
            engine.kill()

    async def _end_children(self, second: asyncio.Event) -> None:
        self._ending, self._orders.replaces = True, False
        # While this process had it open, clients would still get connections, which nobody would ever accept.
        self._listener.close()
        # A process that waits for an engine has no requests, and ends without one. The streams of the others go on over a
        # death of the engine, as ever.
        for engine in self.engines:
            engine.runs.set()
        self._send_to_all(lambda child: child.stop(at_once=False))
        hurry = asyncio.create_task(second.wait())
        keepers = asyncio.gather(*self._keepers, return_exceptions=True)
        patience = self._resolution.server.shutdown_timeout + FLUSH_SECONDS + GRACE_S
        await asyncio.wait((keepers, hurry), timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        for engine in self.engines:
            engine.leave()
        if not keepers.done():
            self._send_to_all(lambda child: child.stop(at_once=True))
            await asyncio.wait({keepers}, timeout=GRACE_S)
        self._send_to_all(ApiChild.kill)

    async def _keep(self, number: int) -> None:
        """Keep a process of this number running."""
        reviver = Reviver(RestartConfig())
        while not self._ending:
            try:
                limit = self._resolution.server.max_callback_ms
                child = await ApiChild.spawn(number, self._listener, limit, self._media)
            except OSError as error:
                self._fail(ApiProcessError(f"API process {number} cannot be started: {error}."))
                return
            self._children[number] = child
            try:
                await self._serve_with(child, reviver)
                how = await child.ended()
            except BaseException:
                child.kill()
                raise
            self._forget(child)
            if self._ending or self._failed.is_set():
                return
            delay = reviver.delay()
            sentence = f"API process {number} {how}"
            if delay is None or (not child.clients and not self._all_serve.is_set()):
                self._fail(ApiProcessError(f"{sentence}; it is not started again."))
                return
            logger.error("%s: its connections have ended. It is started again.", sentence)
            await asyncio.sleep(delay)

    async def _serve_with(self, child: ApiChild, reviver: Reviver) -> None:
        """Make a process serve, and act on its messages until it hangs up."""
        await self._one_runs()
        child.begin(self._begin(child.number))
        for engine in self.engines:
            if engine.gone is not None:
                child.tell(engine.gone)
        # The end may have begun while this process waited for the engine.
        if self._ending:
            child.stop(at_once=False)
        while (message := await child.receive()) is not None:
            match message:
                case Serving():
                    child.clients[message.engine] = message.epoch, message.client
                    reviver.came_up()
                    serving = [each for each in self._children.values() if each.clients]
                    if len(serving) == len(self._keepers):
                        self._all_serve.set()
                case Explained():
                    self.engines[message.engine].forgive(message.num_deaths)
                case MetricsRequest():
                    self._spawn(self._send_metrics(child, message.question))
                case MetricsReply():
                    self._rounds.told(message)
                case OperatorOrder():
                    self._orders.begin(child, message)
                case OrderDone():
                    self._orders.told(child, message)
                case MissedCall():
                    self._spawn(self.engines[message.engine].get(message.method, message.arguments))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)

    async def _send_metrics(self, asker: ApiChild, question: int) -> None:
        others = [child for child in self._children.values() if child is not asker and child.clients]
        asker.send(MetricsReply(question, await self._rounds.ask(others)))

    async def _one_runs(self) -> None:
        """Wait until there is an engine, or it makes no sense to wait for one any more."""
        waiting = [asyncio.create_task(engine.runs.wait()) for engine in self.engines]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    def _lose_engine(self, failure: EngineDeadError) -> None:
        """Fail when all engines are gone for good. An engine that an operator has ended is started where no other is left."""
        if all(engine.gone is not None and not engine.is_ended for engine in self.engines):
            self._fail(failure)
        else:
            self._orders.take_back()

    def _asked_to_end(self, number: int) -> None:
        """Replace an engine to which somebody has sent SIGTERM."""
        self._orders.replace(number)

    def _begin(self, number: int) -> Begin:
        found = self._resolution
        count = found.server.api_server_count
        shares_sessions = directory_of_sessions(found.engine) is not None
        return Begin(
            number=number,
            addresses=[engine.address for engine in self.engines],
            engine=with_shared_media(engine_share(found.engine, number, count), self._media),
            server=server_share(found.server, number, count, shares_sessions=shares_sessions),
            tokenizer=found.manifest.tokenizer,
            explained=explained(found),
            drained=sorted(self._orders.drained),
        )

    def _forget(self, child: ApiChild) -> None:
        """Note the end of a process, and of its requests."""
        self._children.pop(child.number, None)
        self._orders.lost(child)
        for engine, (epoch, client) in child.clients.items():
            self.engines[engine].declare_gone(epoch, client)

    def _begun(self) -> list[ApiChild]:
        """Return the processes that serve, or soon will."""
        return [child for child in self._children.values() if child.has_begun]

    def _send_to_all(self, tell: Callable[[ApiChild], None]) -> None:
        for child in list(self._children.values()):
            tell(child)

    def _send_event(self, news: EngineEvent) -> None:
        self._send_to_all(lambda child: child.tell(news))

    def _fail(self, failure: CoreError) -> None:
        self._failure = failure
        self._failed.set()
