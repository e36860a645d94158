"""A client's connection to an engine process.

Owns: `EngineConnection`: the client's socket, the greeting, and noticing that the other end is gone.
Never does: know requests, or own the process. Called by: `ZmqClient` and whoever starts an engine.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable

import msgspec
import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from core.api.errors import EngineDeadError, PluginError, UserError
from core.api.messages import EngineFailed, EngineMessage, EngineReady
from core.engine import wire
from core.engine.greeting import GREETING, greeting_problem

logger = logging.getLogger(__name__)


class EngineConnection:
    """One socket to the engine that binds, or will bind, `address`. Use it from one event loop.

    watches: whether `until_lost` is going to be called: a client that has no process to watch.
    """

    def __init__(self, address: str, *, watches: bool = False) -> None:
        self.address = address
        self._decoder = wire.engine_message_decoder()
        self._context: zmq.asyncio.Context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket = self._context.socket(zmq.DEALER)
        wire.configure(self._socket)
        self._monitor: zmq.asyncio.Socket | None = None
        if watches:
            self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.connect(address)

    async def greet(self, start: wire.StartEngine | None = None) -> EngineReady:
        """Greet and wait until the engine is up. start: makes this the connection of the engine's owner.

        Raises UserError for a mistake in the configuration, PluginError when a plugin fails, EngineDeadError for anything
        else, such as another version of the protocol.
        """
        greeting = [GREETING] if start is None else [GREETING, wire.encode(start)]
        await self._socket.send_multipart(greeting)
        problem = greeting_problem(await self._socket.recv(), "engine")
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
        payload = await self._socket.recv()
        try:
            return self._decoder.decode(payload)
        except msgspec.DecodeError as error:
            raise EngineDeadError(f"The engine sent a message that cannot be read: {error}.") from error

    def post(self, payload: bytes) -> Awaitable[object]:
        """Send. Messages leave in the order of the calls, and the socket's queue has no limit: nobody need wait."""
        return self._socket.send(payload)

    async def until_lost(self) -> None:
        """Until the engine's end of the connection is gone."""
        assert self._monitor is not None
        await recv_monitor_message(self._monitor)

    def close(self, linger_ms: int = 0) -> None:
        """Give the socket back. linger_ms: how long what was posted just now has for leaving."""
        if self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
        self._socket.close(linger=linger_ms)
        self._context.term()


def _failed_start(failure: EngineFailed) -> Exception:
    if failure.user_error:
        return UserError(failure.message)
    if failure.plugin is not None:
        logger.debug("A plugin failed.\n%s", failure.details)
        return PluginError(failure.message, failure.plugin)
    logger.error("The engine failed to start.\n%s", failure.details)
    return EngineDeadError(f"The engine failed to start: {failure.message}")
