"""One of several processes that answer HTTP requests: `python -P -m core_apis.processes.api_process CONTROL LISTENER [MS]`.

Owns: this process: its engine client, its application, and the supervisor's messages. Never does: bind a port, start or
end an engine, take signals (the supervisor decides). Called by: `core_apis.processes.api_child`, as a child.

CONTROL and LISTENER are file descriptors: of the socket to the supervisor, and of the one that all API processes accept
from. MS is `--max-callback-ms`, where it is given.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import sys
from collections.abc import Mapping
from typing import Any

from core.api.errors import CoreError, EngineDeadError
from core.processes import end_with_parent
from core_apis.context import ServingContext
from core_apis.processes.api_messages import (
    PULSE_S,
    Alive,
    Begin,
    Channel,
    EngineAt,
    EngineDied,
    EngineGone,
    Explained,
    MetricsReply,
    MetricsRequest,
    MissedCall,
    OrderDone,
    PartOfOrder,
    Serving,
    Stop,
    ToApi,
)
from core_apis.processes.engine_events import EngineEvents, SharedEngine, SharedEngineSource
from core_apis.processes.shared_orders import SharedOrders
from core_apis.server.lifetime import close_engine, on_loop_error
from core_apis.server.loop_watch import loop_factory
from core_apis.server.process_limits import raise_limits
from core_apis.server.service import ready_application, serve_requests
from core_frontend.async_engine import AsyncEngine
from core_frontend.group.source import GroupSource
from core_frontend.prompts.tokenizing import load_shared_tokenizer
from core_observers.logging import SERVER_LIBRARIES, setup_logging
from core_observers.output import best_effort_output
from core_observers.shared_metrics import Family, families
from core_supervision.helpers.lane import Spawned
from core_supervision.link.zmq_client import ZmqClient
from core_tokens.tokenizer import Tokenizer

ANSWER_S = 2.0
"""Seconds to wait for the metrics of the other processes."""


class ApiProcess:
    """The state of this API process."""

    def __init__(self, channel: Channel, begin: Begin) -> None:
        self.begin = begin
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self._channel = channel
        self._news = [EngineEvents(address) for address in begin.addresses]
        self._context: ServingContext | None = None
        self._numbers = itertools.count()
        self._questions: dict[int, asyncio.Future[dict[int, list[Family]]]] = {}
        self._clients: dict[int, ZmqClient] = {}
        self._orders = SharedOrders(channel.send, begin.drained)

    @property
    def is_serving(self) -> bool:
        """Whether requests are served, so that some may have to be awaited at the end."""
        return self._context is not None

    async def serve(self, listener: socket.socket, helper: Spawned | None = None) -> None:
        """Serve until the supervisor sends `Stop`. Raises EngineDeadError once there is no engine any more.

        helper: see `serve_requests`.
        """
        begin = self.begin
        tokenizer = await asyncio.to_thread(load_shared_tokenizer, begin.tokenizer, begin.engine)
        engine = await self._engine(tokenizer)
        try:
            events = self.stop, self.hurry
            await serve_requests(
                *(begin.server, listener, engine, events, self._on_ready),
                explain=lambda: begin.explained,
                helper=helper,
            )
        finally:
            self._orders.close()
            await close_engine(engine, self.hurry)

    async def hear(self) -> None:
        """Act on the supervisor's messages until it hangs up."""
        while (message := await self._channel.receive()) is not None:
            match message:
                case Stop():
                    self.stop.set()
                    if message.at_once:
                        self.hurry.set()
                case MetricsRequest():
                    own = self._own_metrics()
                    self._channel.send(MetricsReply(message.question, {self.begin.number: own}))
                case MetricsReply():
                    answer = self._questions.pop(message.question, None)
                    if answer is not None and not answer.done():
                        answer.set_result(message.families)
                case PartOfOrder():
                    self._orders.begin(message)
                case OrderDone():
                    self._orders.told(message)
                case EngineAt() | EngineDied() | EngineGone():
                    self._news[message.engine].report(message)

    async def metrics_of_others(self) -> dict[int, list[Family]]:
        """Return the metrics of the other API processes by number, without those that do not answer in time."""
        question = next(self._numbers)
        answer: asyncio.Future[dict[int, list[Family]]] = asyncio.get_running_loop().create_future()
        self._questions[question] = answer
        self._channel.send(MetricsRequest(question))
        try:
            return await asyncio.wait_for(answer, ANSWER_S)
        except TimeoutError:
            return {}
        finally:
            self._questions.pop(question, None)

    async def _engine(self, tokenizer: Tokenizer) -> AsyncEngine:
        """Connect to the engine, or to all engines of a group."""
        sources = [self._source(number) for number in range(len(self._news))]
        config = self.begin.engine
        if len(sources) == 1:
            return AsyncEngine(config, tokenizer, await sources[0].first(), sources[0])
        group = GroupSource(sources, self.begin.server.api_server_count, leaves_out=True)
        client = await group.first()
        client.calls.on_missed = self._pass_on
        engine = AsyncEngine(config, tokenizer, client, group)
        assert engine.moves is not None, "it has a group and a source"
        await self._orders.serve(engine.moves)
        return engine

    def _pass_on(self, engine: int, method: str, arguments: Mapping[str, Any]) -> None:
        """Have the supervisor make a call when it starts an engine again that was ended."""
        self._channel.send(MissedCall(engine, method, dict(arguments)))

    def _source(self, number: int) -> SharedEngineSource:
        """Return the source of one engine. number: its place in the group."""
        news = self._news[number]
        return SharedEngineSource(
            news,
            lambda address: SharedEngine(address, news),
            lambda client: self._on_client(number, client),
            lambda num_deaths: self._channel.send(Explained(num_deaths, number)),
        )

    def _on_client(self, number: int, client: ZmqClient) -> None:
        self._clients[number] = client
        if self._context is not None:
            self._channel.send(Serving(client.ready.client, client.epoch, number))

    def _on_ready(self, context: ServingContext) -> None:
        self._context = context
        context.metrics.share(self.begin.number, self.metrics_of_others)
        for number, client in self._clients.items():
            self._channel.send(Serving(client.ready.client, client.epoch, number))

    def _own_metrics(self) -> list[Family]:
        return [] if self._context is None else families(self._context.metrics.registry.collect())


async def show_life(channel: Channel) -> None:
    """Send pulses to the supervisor for as long as this event loop runs."""
    while True:
        channel.send(Alive())
        await asyncio.sleep(PULSE_S)


async def run(control: int, listener: socket.socket) -> None:
    """Serve for the supervisor at the other end of `control`."""
    asyncio.get_running_loop().set_exception_handler(on_loop_error)
    channel = await Channel.open(socket.socket(fileno=control), ToApi)
    living = asyncio.ensure_future(show_life(channel))
    try:
        await _serve(channel, listener)
    finally:
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)
        channel.close()


async def _serve(channel: Channel, listener: socket.socket) -> None:
    helper = await ready_application()
    begin = await channel.receive()
    if not isinstance(begin, Begin):
        return
    process_name = f"server-{begin.number}"
    setup_logging(process=process_name, libraries=SERVER_LIBRARIES, config=begin.server.log_config)
    process = ApiProcess(channel, begin)
    hearing = asyncio.ensure_future(process.hear())
    serving = asyncio.ensure_future(process.serve(listener, helper))
    stopping = asyncio.ensure_future(process.stop.wait())
    try:
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        if process.is_serving or serving.done():
            await serving
    finally:
        for task in (serving, hearing, stopping):
            task.cancel()
        await asyncio.gather(serving, hearing, stopping, return_exceptions=True)


def main() -> int:
    """Run the process; return its exit status."""
    raise_limits()
    control, listening = (int(word) for word in sys.argv[1:3])
    max_callback_ms = float(sys.argv[3]) if len(sys.argv) > 3 else None
    end_with_parent(control)
    with (
        best_effort_output(),
        socket.socket(fileno=listening) as listener,
        asyncio.Runner(loop_factory=loop_factory(max_callback_ms)) as runner,
    ):
        try:
            runner.run(run(control, listener))
        except EngineDeadError:
            return 1  # the supervisor knows the reason
        except CoreError as error:
            print(f"core serve: {error}", file=sys.stderr, flush=True)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
