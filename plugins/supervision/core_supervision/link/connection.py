"""A client's connection to an engine process.

Owns: `EngineConnection`, the words that both ends begin with, whatever carries them; `SocketConnection`, over a socket of this
machine, and noticing there that the other end is gone; `Voice`, which a connection that watches its engine needs of its client.
Never does: know requests, or end the engine (`OwnedEngine` does). Called by: `ZmqClient`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Protocol

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from core.api.decoding import UNREADABLE
from core.api.errors import EngineDeadError, PluginError, UserError
from core.api.messages import EngineFailed, EngineMessage, EngineReady, Leave
from core.engine import wire
from core.engine.greeting import GREETING, greeting_problem

logger = logging.getLogger(__name__)

LARGE_MESSAGE = 256 * 1024
"""Bytes of a message from which on it is decoded outside the event loop: log-probabilities of a long prompt are many MB."""


class Voice(Protocol):
    """A client's record of what the engine owes.

    for_others: whether other clients wait for the engine too, whose open requests and calls this client does not know.
    """

    for_others: bool

    @property
    def silence_s(self) -> float:
        """Seconds for which it has said nothing although something waits for it."""
        ...

    def ping(self) -> object:
        """Request a sign of life, unless such a request is open."""
        ...


class EngineConnection:
    """The way to one engine. Subclasses carry the payloads: `_greeted`, `_payload`, `post`, `until_ended`, `close`.

    address:           of the engine, which further clients connect to.
    clock_offset_s:    what the engine's monotonic clock is ahead of ours.
    max_message_bytes: that can be sent at once; None: any number.
    pid:               process id of the engine; None: this client did not start it.
    """

    clock_offset_s = 0.0
    max_message_bytes: int | None = None
    pid: int | None = None

    def __init__(self, address: str) -> None:
        self.address = address
        self._decoder = wire.engine_message_decoder()

    async def greet(self, start: wire.StartEngine | None = None) -> EngineReady:
        """Greet and wait until the engine is up. start: makes this the connection of the engine's owner.

        Raises UserError for a mistake in the configuration, PluginError when a plugin fails, EngineDeadError for anything
        else, such as another version of the protocol.
        """
        parts = [GREETING] if start is None else [GREETING, wire.encode(start)]
        problem = greeting_problem(await self._greeted(parts), "engine")
        if problem:
            raise EngineDeadError(problem)
        message = await self.receive()
        if isinstance(message, EngineReady):
            return message
        if isinstance(message, EngineFailed):
            raise _failed_start(message)
        raise EngineDeadError(f"The engine process answered with {type(message).__name__}; expected EngineReady.")

    async def receive(self) -> EngineMessage:
        """The next message. Raises EngineDeadError for one that cannot be read."""
        payload = await self._payload()
        try:
            if len(payload) > LARGE_MESSAGE:
                return await asyncio.to_thread(self._decoder.decode, payload)
            return self._decoder.decode(payload)
        except UNREADABLE as error:
            raise EngineDeadError(f"The engine sent a message that cannot be read: {error}.") from error

    def post(self, payload: bytes) -> Awaitable[object]:
        """Send. Messages leave in the order of the calls, and there is no limit of queued ones: awaiting it is optional."""
        raise NotImplementedError

    async def until_ended(self, voice: Voice) -> EngineDeadError:
        """Until the engine is gone; returns how it ended, as far as can be told from here.

        voice: what is heard of it.
        """
        raise NotImplementedError

    def suspects(self) -> tuple[int, ...] | None:
        """Handles of the sequences that the engine is computing; None: that is not known here."""
        return None

    async def leave(self, grace_s: float) -> None:
        """Say that this client goes away, unless there is no time for that."""
        if grace_s > 0:
            await self.post(wire.encode(Leave()))

    def give_up(self) -> None:
        """The engine cannot be trusted any more. It is not ours to end."""

    def close(self) -> None:
        """Give everything back; tasks that wait for a message must have been cancelled."""
        raise NotImplementedError

    async def _greeted(self, parts: list[bytes]) -> bytes:
        """Send the first message; returns the engine's greeting."""
        raise NotImplementedError

    async def _payload(self) -> bytes:
        """The next message as it came."""
        raise NotImplementedError


class SocketConnection(EngineConnection):
    """One socket to the engine that binds, or will bind, `address`. Use it from one event loop.

    linger_ms: how long what was sent last has for leaving when the connection is closed.
    """

    linger_ms = 200

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._context: zmq.asyncio.Context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket = self._context.socket(zmq.DEALER)
        wire.configure(self._socket)
        self._monitor: zmq.asyncio.Socket = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.connect(address)

    def post(self, payload: bytes) -> Awaitable[object]:
        """As above."""
        return self._socket.send(payload, copy=len(payload) <= LARGE_MESSAGE)

    async def until_ended(self, voice: Voice) -> EngineDeadError:
        """As above."""
        await recv_monitor_message(self._monitor)
        return EngineDeadError("The engine has closed the connection: its process ended.", cause="exit")

    def close(self) -> None:
        """As above."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=self.linger_ms)
        self._context.term()

    async def _greeted(self, parts: list[bytes]) -> bytes:
        await self._send_greeting(parts)
        return await self._payload()

    async def _send_greeting(self, parts: list[bytes]) -> None:
        await self._socket.send_multipart(parts)

    async def _payload(self) -> bytes:
        payload: bytes = await self._socket.recv()
        return payload


def _failed_start(failure: EngineFailed) -> Exception:
    if failure.user_error:
        return UserError(failure.message)
    if failure.plugin is not None:
        logger.debug("A plugin failed.\n%s", failure.details)
        return PluginError(failure.message, failure.plugin)
    logger.error("The engine failed to start.\n%s", failure.details)
    return EngineDeadError(f"The engine failed to start: {failure.message}")
