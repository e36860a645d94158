"""The API server's end of the link to its engine.

Owns: `ApiServerLink`: the API server's current engine, reports about it, and its channels. Never does: run requests, or know
HTTP. Called by: the API server's start; `LinkedEngine` sends through it.

There is one engine at a time. Another one that connects meanwhile is refused as busy and retries, so that it can take over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import zmq

from core.api.errors import UNREADABLE
from core.engine.hello import greeting_problem
from core_apis.processes.api_messages import Alive, EngineAt, EngineDied, EngineGone, Explained
from core_apis.processes.engine_events import EngineEvents
from core_apis.remote import messages
from core_apis.remote.agreement import Agreement
from core_apis.remote.linked_engine import LinkedEngine
from core_apis.remote.messages import HELLO, TALK
from core_apis.remote.sockets import LAST_WORDS_MS, Link
from core_apis.remote.waiting import Waiting
from core_supervision.link.turns import Turns

if TYPE_CHECKING:
    from core_config.resolve import Resolution

logger = logging.getLogger(__name__)

HOW = "`core serve MODEL --headless` with the same --data-parallel-address and --data-parallel-rpc-port"


class ApiServerLink:
    """The link of one API server. It listens as soon as it is made. Use it from one event loop.

    news: receives the reports about engines.

    Raises UserError if the address cannot be listened at.
    """

    def __init__(self, resolution: Resolution, news: EngineEvents) -> None:
        settings = resolution.server.remote
        assert settings is not None
        self._agreement = Agreement(resolution)
        self._news = news
        self._link = Link(settings, listens=True)
        self._decoder = msgspec.msgpack.Decoder(messages.ToApiServer)
        self._peer: bytes | None = None
        self._who = ""
        self._heard_at = 0.0
        self._channels: dict[int, LinkedEngine] = {}
        self._num_channels = 0
        self._num_lives = 0
        self._waiting = Waiting("an engine", settings.patience_s)
        self._waiting.begin()
        self._tasks = [asyncio.ensure_future(work) for work in (self._read(), self._watch(), self._look())]
        for task in self._tasks:
            task.add_done_callback(self._on_end)
        logger.info("Listening for an engine at %s: %s.", self._link.address, HOW)

    @property
    def hello(self) -> messages.Hello | None:
        """Return the description of the first accepted engine; None: there was none yet."""
        return self._agreement.hello

    def connection(self, address: str) -> LinkedEngine:
        """Open a new channel to the engine at an address from a report."""
        self._num_channels += 1
        number = self._num_channels
        engine = LinkedEngine(address, number, self, self._news)
        self._channels[number] = engine
        self.say(messages.Open(number, time.monotonic()))
        return engine

    def drop(self, channel: int) -> None:
        """Close a channel."""
        if self._channels.pop(channel, None) is not None:
            self.say(messages.Close(channel))

    def post(self, channel: int, payload: bytes) -> None:
        """Send over a channel; nothing happens if the engine is gone."""
        self._send_to_engine(messages.channel_kind(channel), payload)

    def say(self, message: msgspec.Struct) -> None:
        """Send a message to the engine's command, if there is one."""
        self._send_to_engine(TALK, msgspec.msgpack.encode(message))

    def explain(self, num_deaths: int) -> None:
        """Report that one request caused `num_deaths` deaths of engines."""
        self.say(Explained(num_deaths))

    async def close(self) -> None:
        """Say goodbye, and stop listening. May be called twice."""
        if not self._tasks:
            return
        tasks, self._tasks = self._tasks, []
        self.say(messages.Bye("the API server has ended"))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._peer = None
        self._link.close(LAST_WORDS_MS)

    async def _read(self) -> None:
        """Read all messages, from any sender."""
        turns = Turns()
        while True:
            await turns.give_way()
            identity, kind, payload = await self._link.receive_from()
            if identity == self._peer:
                self._heard_at = time.monotonic()
                self._handle(kind, payload)
            elif kind != TALK and messages.channel_of(kind) is None:
                self._meet(identity, kind, payload)

    def _handle(self, kind: bytes, payload: bytes) -> None:
        channel = messages.channel_of(kind)
        if channel is not None:
            engine = self._channels.get(channel)
            if engine is not None:
                engine.take(payload)
            return
        try:
            message = self._decoder.decode(payload)
        except UNREADABLE as error:
            self._lose(f"it sent a message that cannot be read ({error})")
            return
        self._act(message)

    def _act(self, message: Any) -> None:
        """Act on a message of the engine's command."""
        match message:
            case EngineAt():
                self._num_lives += 1
                self._news.report(EngineAt(f"{self._link.address}#{self._num_lives}"))
            case EngineDied():
                self._news.report(message)
            case messages.Opened():
                engine = self._channels.get(message.channel)
                if engine is not None:
                    # The engine answered at some time between our two times; their middle is wrong by at most half the
                    # distance between them.
                    between = (message.asked + time.monotonic()) / 2
                    engine.opened(message.now - between)
            case EngineGone() | messages.Bye():
                self._lose(message.sentence.rstrip("."))

    def _meet(self, identity: bytes, greeting: bytes, payload: bytes) -> None:
        """Answer a process that introduces itself as an engine."""
        problem = greeting_problem(greeting, "engine")
        if problem:
            logger.error("An engine was turned away. %s", problem)
            self._send(identity, HELLO, b"")
            return
        try:
            hello = msgspec.msgpack.decode(payload, type=messages.Hello)
        except UNREADABLE as error:
            self._refuse(identity, f"What it says of itself cannot be read: {error}.")
            return
        if self._peer is not None:
            self.say(Alive())  # shows whether that engine is still there, before the new one asks again
            self._answer(identity, messages.Refused(f"The API server has an engine, {self._who}.", is_busy=True))
            return
        wrong = self._agreement.objection(hello)
        if wrong:
            self._refuse(identity, wrong)
            return
        self._take(identity, hello)

    def _take(self, identity: bytes, hello: messages.Hello) -> None:
        self._peer = identity
        self._who = hello.who
        self._heard_at = time.monotonic()
        self._agreement.take(hello)
        self._waiting.end()
        self._answer(identity, messages.Welcome())
        logger.info("The engine of %s has come.", hello.who)

    def _refuse(self, identity: bytes, sentence: str) -> None:
        logger.error("An engine was turned away. %s", sentence)
        self._answer(identity, messages.Refused(sentence, is_busy=False))

    def _answer(self, identity: bytes, answer: msgspec.Struct) -> None:
        self._send(identity, HELLO, msgspec.msgpack.encode(answer))

    def _lose(self, how: str) -> None:
        """Give up the engine's command, which is gone or sent something invalid. how: a clause."""
        if self._peer is None:
            return
        self._peer = None
        self._waiting.begin()
        sentence = f"The engine of {self._who} is gone: {how}."
        logger.error("%s Waiting for an engine at %s.", sentence, self._link.address)
        self._news.report(EngineDied(sentence, "exit", ()))

    async def _watch(self) -> None:
        """Watch the connection events of the library."""
        while True:
            trouble = await self._link.trouble()
            if trouble is not None:
                self._waiting.trouble = trouble
            else:
                self.say(Alive())  # fails if the lost connection was the engine's

    async def _look(self) -> None:
        """Send and check signs of life, and end the wait for an engine once it has been too long."""
        while True:
            await asyncio.sleep(messages.PULSE_S)
            self.say(Alive())
            if time.monotonic() - self._heard_at > messages.SILENCE_S:
                self._lose(messages.SILENCE)
            sentence = self._waiting.look(f"at {self._link.address} ({HOW})")
            if sentence is not None:
                self._news.report(EngineGone(sentence, "exit"))
                return

    def _send_to_engine(self, kind: bytes, payload: bytes) -> None:
        """Send to the current engine, if there is one."""
        if self._peer is not None:
            self._send(self._peer, kind, payload)

    def _send(self, identity: bytes, kind: bytes, payload: bytes) -> None:
        self._link.send(kind, payload, identity).add_done_callback(partial(self._sent, identity))

    def _sent(self, identity: bytes, sending: asyncio.Future[Any]) -> None:
        """Check a send: an unknown peer may have gone before its answer, but the current engine must not."""
        if sending.cancelled():
            return
        error = sending.exception()
        if error is None or identity != self._peer:
            return
        is_gone = isinstance(error, zmq.ZMQError) and error.errno == zmq.EHOSTUNREACH
        self._lose("the connection was lost" if is_gone else f"nothing can be sent to it ({error})")

    def _on_end(self, task: asyncio.Future[None]) -> None:
        """Note the end of one of our tasks, which is a bug unless the wait is over."""
        if task.cancelled() or task.exception() is None:
            return
        logger.error("The way to the engine is broken.", exc_info=task.exception())
        self._news.report(EngineGone(f"The way to the engine is broken ({task.exception()}).", "exit"))
