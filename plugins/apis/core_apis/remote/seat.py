"""The place of one engine of another command at its API server.

Owns: `Seat`: the engine that has this rank now, the reports about it, and the channels to it. Never does: read from the socket,
or decide who may have the place (the link does). Called by: `ApiServerLink`; `LinkedEngine` sends through it.

There is one engine at a time. Another one of this rank that connects meanwhile is refused as busy and retries, so that it can
take over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from core.api.errors import UNREADABLE
from core_apis.processes.api_messages import Alive, EngineAt, EngineDied, EngineGone, Explained
from core_apis.processes.engine_events import EngineEvents, SharedEngineSource
from core_apis.remote import messages
from core_apis.remote.linked_engine import LinkedEngine
from core_apis.remote.messages import TALK
from core_apis.remote.waiting import Waiting
from core_supervision.link.zmq_client import ZmqClient

logger = logging.getLogger(__name__)

HOW = "`core serve MODEL --headless` with the same --data-parallel-address and --data-parallel-rpc-port"


class Postman(Protocol):
    """What a seat needs of the link."""

    address: str

    def send(self, seat: Seat, kind: bytes, payload: bytes) -> None:
        """Send to the engine of a seat."""
        ...


class Seat:
    """The place of the engine of one rank.

    name: of this place, in sentences.
    peer: the identity of its engine; None: there is none.
    who:  the process of the engine that it has, or had last.
    news: receives the reports about its engines.
    on_leaving: called when its engine is about to end.
    """

    def __init__(self, rank: int, group_size: int, link: Postman, patience_s: float) -> None:
        self.name = "engine" if group_size == 1 else f"engine {rank} of {group_size}"
        self.peer: bytes | None = None
        self.who = ""
        self.news = EngineEvents()
        self.on_leaving: Callable[[], object] | None = None
        self.waiting = Waiting("an engine" if group_size == 1 else self.name, patience_s)
        self.waiting.begin()
        self._option = "" if group_size == 1 else f", and --data-parallel-start-rank {rank} or one below it"
        self._link = link
        self._heard_at = 0.0
        self._decoder = msgspec.msgpack.Decoder(messages.ToApiServer)
        self._channels: dict[int, LinkedEngine] = {}
        self._num_channels = 0
        self._num_lives = 0

    def source(self) -> SharedEngineSource:
        """Return the source of connections to the engines of this place."""
        return SharedEngineSource(self.news, self.connection, _ignore, self.explain)

    def connection(self, address: str) -> LinkedEngine:
        """Open a new channel to the engine at an address from a report."""
        self._num_channels += 1
        number = self._num_channels
        engine = LinkedEngine(address, number, self, self.news)
        self._channels[number] = engine
        self.say(messages.Open(number, time.monotonic()))
        return engine

    def drop(self, channel: int) -> None:
        """Close a channel."""
        if self._channels.pop(channel, None) is not None:
            self.say(messages.Close(channel))

    def post(self, channel: int, payload: bytes) -> None:
        """Send over a channel; nothing happens if the engine is gone."""
        self._link.send(self, messages.channel_kind(channel), payload)

    def say(self, message: msgspec.Struct) -> None:
        """Send a message to the engine's command, if there is one."""
        self._link.send(self, TALK, msgspec.msgpack.encode(message))

    def explain(self, num_deaths: int) -> None:
        """Report that one request caused `num_deaths` deaths of engines."""
        self.say(Explained(num_deaths))

    def take(self, identity: bytes, who: str) -> None:
        """Have this engine."""
        self.peer, self.who = identity, who
        self.heard()
        self.waiting.end()

    def heard(self) -> None:
        """Note a sign of life of the engine, or that this process could have heard none."""
        self._heard_at = time.monotonic()

    def receive(self, kind: bytes, payload: bytes) -> None:
        """Act on a message of the engine."""
        self.heard()
        channel = messages.channel_of(kind)
        if channel is not None:
            engine = self._channels.get(channel)
            if engine is not None:
                engine.take(payload)
            return
        try:
            message = self._decoder.decode(payload)
        except UNREADABLE as error:
            self.lose(f"it sent a message that cannot be read ({error})")
            return
        self._act(message)

    def lose(self, how: str) -> None:
        """Give up the engine's command, which is gone or sent something invalid. how: a clause."""
        if self.peer is None:
            return
        self.peer = None
        self.waiting.begin()
        sentence = f"The {self.name} of {self.who} is gone: {how}."
        logger.error("%s Waiting for an engine at %s.", sentence, self._link.address)
        self.news.report(EngineDied(sentence, "exit", ()))

    def look(self, *, is_needed: bool) -> bool:
        """Send and check signs of life; return whether this place stays empty for good.

        is_needed: whether the wait for an engine has a limit.
        """
        self.say(Alive())
        if time.monotonic() - self._heard_at > messages.SILENCE_S:
            self.say(messages.Bye("the API server has heard nothing"))  # one that still runs introduces itself again
            self.lose(messages.SILENCE)
        sentence = self.waiting.look(f"at {self._link.address} ({HOW}{self._option})", has_limit=is_needed)
        if sentence is not None:
            self.news.report(EngineGone(sentence, "exit"))
        return sentence is not None

    def _act(self, message: Any) -> None:
        """Act on a message of the engine's command."""
        match message:
            case EngineAt():
                self._num_lives += 1
                self.news.report(EngineAt(f"{self._link.address}#{self._num_lives}"))
            case EngineDied():
                self.news.report(message)
            case messages.Leaving():
                logger.info("The %s of %s is about to end.", self.name, self.who)
                if self.on_leaving is not None:
                    self.on_leaving()
            case messages.Opened():
                engine = self._channels.get(message.channel)
                if engine is not None:
                    # The engine answered at some time between our two times; their middle is wrong by at most half the
                    # distance between them.
                    between = (message.asked + time.monotonic()) / 2
                    engine.opened(message.now - between)
            case EngineGone() | messages.Bye():
                self.lose(message.sentence.rstrip("."))


def _ignore(client: ZmqClient) -> None:
    """Do nothing: an API server does not report which client is in use."""
