"""Connection of a client to an engine process.

Owns: `EngineConnection`, the handshake, independent of the transport; `SocketConnection`, over a socket of this machine, which
detects that the other end is gone; `Voice`, the part of a client that a connection uses to watch its engine.
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

from core.api.errors import UNREADABLE, EngineDeadError, PluginError, UserError
from core.api.messages import EngineFailed, EngineMessage, EngineReady, Leave
from core.engine import wire
from core.engine.hello import GREETING, greeting_problem

logger = logging.getLogger(__name__)

LARGE_MESSAGE = 256 * 1024
"""Size in bytes from which a message is decoded outside the event loop: log-probabilities of a long prompt take many MB."""


class Voice(Protocol):
    """The part of a client that shows whether the engine still answers.

    for_others: whether other clients wait for the engine too, whose open requests and calls this client does not know.
    """

    for_others: bool

    @property
    def silence_s(self) -> float:
        """Seconds without a message from the engine although something waits for one."""
        ...

    def ping(self) -> object:
        """Send a ping, unless the last one is still unanswered."""
        ...

    def asked_to_end(self) -> None:
        """Learn that somebody has asked the engine's process to end, which goes on."""
        ...


class EngineConnection:
    """A connection to one engine, owned by its client. Subclasses transport the payloads: `_greeted`, `_payload`, `post`,
    `until_ended`, `close`.

    address:           address of the engine, to which further clients connect.
    clock_offset_s:    seconds that the engine's monotonic clock is ahead of this process's.
    max_message_bytes: maximum size of a message; None: no limit.
    pid:               process id of the engine; None: this client did not start it.
    """

    clock_offset_s = 0.0
    max_message_bytes: int | None = None
    pid: int | None = None

    def __init__(self, address: str) -> None:
        self.address = address
        self._decoder = wire.engine_message_decoder()

    async def greet(self, start: wire.StartEngine | None = None) -> EngineReady:
        """Send the greeting and wait until the engine is ready. start: makes this the connection of the engine's owner.

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
        """Return the next message. Raises EngineDeadError for one that cannot be read."""
        payload = await self._payload()
        try:
            if len(payload) > LARGE_MESSAGE:
                return await asyncio.to_thread(self._decoder.decode, payload)
            return self._decoder.decode(payload)
        except UNREADABLE as error:
            raise EngineDeadError(f"The engine sent a message that cannot be read: {error}.") from error

    def post(self, payload: bytes) -> Awaitable[object]:
        """Send a message. Messages are sent in the order of the calls, and any number may queue, so awaiting is optional."""
        raise NotImplementedError

    async def until_ended(self, voice: Voice) -> EngineDeadError:
        """Wait until the engine is gone; returns how it ended, as far as this end can know.

        voice: shows how long the engine has been silent.
        """
        raise NotImplementedError

    def suspects(self) -> tuple[int, ...] | None:
        """Return the handles of the sequences that the engine is computing; None when this end cannot know."""
        return None

    async def leave(self, grace_s: float) -> None:
        """Send `Leave`, unless `grace_s` is 0."""
        if grace_s > 0:
            await self.post(wire.encode(Leave()))

    def give_up(self) -> None:
        """Abandon an engine that cannot be trusted any more. Does nothing here: only its owner may end it."""

    def close(self) -> None:
        """Close the sockets; tasks that wait for a message must have been cancelled."""
        raise NotImplementedError

    async def _greeted(self, parts: list[bytes]) -> bytes:
        """Send the frames of the first message; returns the engine's greeting."""
        raise NotImplementedError

    async def _payload(self) -> bytes:
        """Return the next message, still encoded."""
        raise NotImplementedError


class SocketConnection(EngineConnection):
    """One socket to the engine that binds, or will bind, `address`, used from one event loop.

    linger_ms: milliseconds for sending the last messages when the connection is closed.
    """

    linger_ms = 200

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._context: zmq.asyncio.Context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket = self._context.socket(zmq.DEALER)
        wire.configure(self._socket)
        # Before `connect`, so that no disconnection is missed. It is noticed at once, without pings.
        self._monitor: zmq.asyncio.Socket = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.connect(address)

    def post(self, payload: bytes) -> Awaitable[object]:
        """Send a message over the socket; large ones are not copied."""
        # A copy of a large message would delay the event loop; for a small one it costs less than tracking the buffer.
        return self._socket.send(payload, copy=len(payload) <= LARGE_MESSAGE)

    async def until_ended(self, voice: Voice) -> EngineDeadError:
        """Wait until the socket reports a disconnection, which says nothing about its cause."""
        await recv_monitor_message(self._monitor)
        return EngineDeadError("The engine has closed the connection: its process ended.", cause="exit")

    def close(self) -> None:
        """Close monitor and socket; the last messages have `linger_ms` to be sent."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=self.linger_ms)
        # Last: it blocks until all sockets of the context are closed.
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
