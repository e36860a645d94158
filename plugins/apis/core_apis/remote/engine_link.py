"""The engine's end of the link to its API server.

Owns: `EngineLink`: one session with an API server after another, and the wait for the next one. Never does: start or end
the engine. Called by: the command `core serve --headless`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from core.api.errors import UNREADABLE
from core.engine.hello import greeting_problem
from core_apis.processes.api_messages import Alive, EngineAt, EngineDied, EngineEvent, Explained
from core_apis.remote import messages
from core_apis.remote.messages import HELLO, TALK
from core_apis.remote.relay import Relay
from core_apis.remote.sockets import LAST_WORDS_MS, MOST_BYTES, Link
from core_apis.remote.waiting import Waiting
from core_apis.server.lifetime import LinkError
from core_config.served.server_config import RemoteSettings

logger = logging.getLogger(__name__)

LOOK_S = 1.0
RETRY_S = 0.2
BUSY_S = 2.0
"""Seconds until the next attempt at an API server that has another engine."""
MOST_UNHEARD_BYTES = 1 << 28
"""Bytes of answers that may be kept in memory while the network fails. A live API server sends something every second."""


class SessionOver(Exception):
    """The session with an API server has ended; the text says how, as a clause."""


class EngineLink:
    """The link of one engine to its API servers. Use it from one event loop.

    rank: of the engine in its group.

    on_explained: called with the number of deaths that the API server has attributed to one request.
    """

    def __init__(self, settings: RemoteSettings, hello: messages.Hello, on_explained: Callable[[int], None]) -> None:
        self._settings = settings
        self._hello = hello
        self._on_explained = on_explained
        self.rank = hello.rank
        self._link: Link | None = None
        self._relay: Relay | None = None
        self._engine: str | None = None
        self._heard_at = 0.0
        self._unheard_bytes = 0
        self._renewed = asyncio.Event()
        self._waiting = Waiting("the API server", settings.patience_s)

    def tell(self, news: EngineEvent) -> None:
        """Report an engine event. An API server that connects later receives the current engine's address."""
        self._engine = news.address if isinstance(news, EngineAt) else None
        # Not EngineGone: an engine that is gone for good ends this process, too.
        if isinstance(news, EngineAt | EngineDied):
            self._say(news)

    def renew(self, hello: messages.Hello) -> None:
        """Announce a changed configuration of the engine, in a new session."""
        self._hello = hello
        self._renewed.set()

    def say_leaving(self) -> None:
        """Announce that the engine ends once its requests have."""
        self._say(messages.Leaving())

    def say_goodbye(self, sentence: str) -> None:
        """Announce to the API server that this process ends. To be called before `run` is cancelled."""
        self._say(messages.Bye(sentence))

    async def run(self) -> NoReturn:
        """Serve API servers until cancelled. Raises LinkError if one refuses this engine, or none comes in time."""
        self._waiting.begin()
        while True:
            link = Link(self._settings, listens=False)
            relay = Relay(self._send, MOST_BYTES)
            is_over = False
            try:
                await self._meet(link)
                self._link, self._relay = link, relay
                await self._serve(link)
            except SessionOver as over:
                is_over = True
                self._after(over)
            finally:
                linger_ms = 0 if is_over or self._link is None else LAST_WORDS_MS
                self._link = self._relay = None
                await relay.end()
                link.close(linger_ms)

    async def _meet(self, link: Link) -> None:
        """Wait until an API server has accepted this engine. Raises SessionOver if there has to be another attempt."""
        self._renewed.clear()
        await link.send(HELLO, msgspec.msgpack.encode(self._hello))
        answering = asyncio.ensure_future(self._answer(link))
        troubling = asyncio.ensure_future(link.trouble())
        try:
            while not answering.done():
                await asyncio.wait({answering, troubling}, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                trouble: str | None = None
                if troubling.done() and not answering.done():
                    trouble = troubling.result()
                    if trouble is None:
                        await asyncio.sleep(RETRY_S)
                        raise SessionOver("the connection was lost")
                    troubling = asyncio.ensure_future(link.trouble())
                self._wait(link, trouble)
            answering.result()
        finally:
            for task in (answering, troubling):
                task.cancel()
            await asyncio.gather(answering, troubling, return_exceptions=True)
        self._waiting.end()
        self._heard_at, self._unheard_bytes = time.monotonic(), 0
        logger.info("The API server at %s takes this engine.", link.address)

    async def _answer(self, link: Link) -> None:
        """Read the API server's answer.

        Raises LinkError for a final refusal, SessionOver if the API server may accept later.
        """
        greeting, payload = await link.receive()
        problem = greeting_problem(greeting, "API server")
        if problem:
            raise LinkError(problem)
        try:
            answer: Any = msgspec.msgpack.decode(payload, type=messages.Answer)
        except UNREADABLE as error:
            raise LinkError(f"The API server at {link.address} sent an answer that cannot be read: {error}.") from error
        if not isinstance(answer, messages.Refused):
            return
        if not answer.is_busy:
            raise LinkError(f"The API server at {link.address} refuses this engine. {answer.sentence}")
        self._wait(link, "it has an engine: " + answer.sentence.rstrip("."))
        await asyncio.sleep(BUSY_S)
        raise SessionOver("it is busy")

    def _wait(self, link: Link, trouble: str | None) -> None:
        """Note another moment without an API server. Raises LinkError once that has been too long."""
        if trouble is not None:
            self._waiting.trouble = trouble
        sentence = self._waiting.look(f"at {link.address} (`core serve MODEL --data-parallel-size-local 0`)")
        if sentence is not None:
            raise LinkError(sentence)

    async def _serve(self, link: Link) -> None:
        """Serve the API server. Raises SessionOver."""
        if self._engine is not None:
            self._say(EngineAt(self._engine))
        works = (self._read(link), self._pulse(), _until_lost(link), self._until_renewed(), self._until_broken())
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            done.pop().result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _after(self, over: SessionOver) -> None:
        if self._link is None:
            return  # there was no session yet
        logger.warning("The API server is gone: %s. Its requests end here; the engine waits for another one.", over)
        self._waiting.begin()

    async def _read(self, link: Link) -> None:
        decoder = msgspec.msgpack.Decoder(messages.ToEngine)
        assert self._relay is not None
        while True:
            kind, payload = await link.receive()
            self._heard_at, self._unheard_bytes = time.monotonic(), 0
            channel = messages.channel_of(kind)
            if channel is not None:
                await self._relay.pass_on(channel, payload)
            elif kind == TALK:
                try:
                    message = decoder.decode(payload)
                except UNREADABLE as error:
                    raise SessionOver(f"it sent a message that cannot be read ({error})") from error
                self._act(message)

    def _act(self, message: Any) -> None:
        """Act on a message of the API server."""
        assert self._relay is not None
        match message:
            case messages.Open():
                if self._engine is not None:
                    self._relay.open(message.channel, self._engine)
                    self._say(messages.Opened(message.channel, message.now, time.monotonic()))
            case messages.Close():
                self._relay.close(message.channel)
            case Explained():
                self._on_explained(message.num_deaths)
            case messages.Bye():
                raise SessionOver(message.sentence.rstrip("."))

    async def _pulse(self) -> None:
        pulse = messages.Pulse()
        while True:
            self._say(Alive())
            if await pulse.was_late():
                self._heard_at = time.monotonic()
            if time.monotonic() - self._heard_at > messages.SILENCE_S:
                raise SessionOver(messages.SILENCE)
            if self._unheard_bytes > MOST_UNHEARD_BYTES:
                raise SessionOver(f"it has said nothing while {self._unheard_bytes} bytes were sent to it")

    async def _until_broken(self) -> None:
        assert self._relay is not None
        await self._relay.broken
        raise SessionOver("messages could not be carried on, see above")

    async def _until_renewed(self) -> None:
        await self._renewed.wait()
        raise SessionOver("the engine introduces itself anew")

    def _say(self, message: msgspec.Struct) -> None:
        if self._link is not None:
            self._link.send(TALK, msgspec.msgpack.encode(message))

    async def _send(self, channel: int, payload: bytes) -> None:
        if self._link is not None:
            self._unheard_bytes += len(payload)
            await self._link.send(messages.channel_kind(channel), payload)


async def _until_lost(link: Link) -> None:
    while await link.trouble() is not None:
        pass
    raise SessionOver("the connection was lost")
