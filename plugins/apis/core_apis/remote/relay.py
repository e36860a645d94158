"""The channels of an API server: each is a client of the local engine.

Owns: `Relay`, which carries messages both ways unchanged. Never does: read them, except for an output that is too large
to be sent. Called by: the engine's end of the link.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec
import zmq
import zmq.asyncio

from core.api.messages import AbortChoices, EngineOutput, EngineOutputs, Leave
from core.engine import wire

logger = logging.getLogger(__name__)

LINGER_MS = 200
LEAVE_S = 0.1
"""Seconds for the engine to receive that a client leaves."""

Send = Callable[[int, bytes], Awaitable[object]]


class Relay:
    """The channels to one engine. Use it from one event loop.

    broken: done once messages could not be carried.

    send: sends a payload to the API server, for a channel.
    most: maximum size of a payload in bytes.
    """

    def __init__(self, send: Send, most: int) -> None:
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._send = send
        self._most = most
        self._context: zmq.asyncio.Context = zmq.asyncio.Context()
        self._sockets: dict[int, zmq.asyncio.Socket] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._left: list[zmq.asyncio.Socket] = []

    def open(self, channel: int, address: str) -> None:
        """Connect a channel to the engine at `address`. An open channel of that number is closed before."""
        self.close(channel)
        self._close_left()
        socket: zmq.asyncio.Socket = self._context.socket(zmq.DEALER)
        wire.configure(socket)
        socket.connect(address)
        self._sockets[channel] = socket
        self._tasks[channel] = asyncio.create_task(self._carry(channel, socket))

    async def pass_on(self, channel: int, payload: bytes) -> None:
        """Send a payload to the engine, unless the channel is closed."""
        socket = self._sockets.get(channel)
        if socket is not None:
            await socket.send(payload)

    def close(self, channel: int) -> None:
        """Detach the client from the engine, which ends its requests. Harmless for a channel that is not open."""
        socket = self._sockets.pop(channel, None)
        if socket is None:
            return
        self._tasks.pop(channel).cancel()
        socket.send(wire.encode(Leave()))
        # Kept open for a while: an engine that cannot reach the client logs it as gone without a word.
        self._left.append(socket)

    async def end(self) -> None:
        """Close all channels, and release everything."""
        for channel in list(self._sockets):
            self.close(channel)
        if self._left:
            await asyncio.sleep(LEAVE_S)
        self._close_left()
        self._context.term()

    def _close_left(self) -> None:
        for socket in self._left:
            socket.close(linger=LINGER_MS)
        self._left.clear()

    async def _carry(self, channel: int, socket: zmq.asyncio.Socket) -> None:
        """Carry messages from the engine to the API server until the channel is closed."""
        try:
            while True:
                payload = await socket.recv()
                if len(payload) > self._most:
                    payload, leftover = smaller(payload)
                    await socket.send(wire.encode(leftover))
                await self._send(channel, payload)
        except Exception as error:
            logger.error("Messages of the engine could not be carried on.", exc_info=error)
            if not self.broken.done():
                self.broken.set_result(None)


def smaller(payload: bytes) -> tuple[bytes, AbortChoices]:
    """Shrink a message of outputs that is too large to be sent: each output in its larger half becomes an error.

    Return it, and the choices that the engine must abort. Raises the errors of decoding.
    """
    message = msgspec.msgpack.decode(payload, type=EngineOutputs)
    sizes = sorted(len(wire.encode(output)) for output in message.outputs)
    middle = sizes[len(sizes) // 2]
    ended: list[tuple[str, int]] = []
    outputs: list[EngineOutput] = []
    for output in message.outputs:
        size = len(wire.encode(output))
        if size < middle:
            outputs.append(output)
            continue
        sentence = f"The answer of one step has {size} bytes, too many for the link to the API server; ask for less."
        outputs.append(
            EngineOutput(
                output.request_id,
                output.choice,
                0,
                [],
                finish_reason="error",
                stop_reason=sentence,
                handle=output.handle,
            )
        )
        if output.finish_reason is None:
            _, _, own_id = output.request_id.partition(":")  # the engine puts the client's number before it
            ended.append((own_id, output.choice))
    logger.error("A message of %d bytes is too large: %d outputs of it end with an error.", len(payload), len(ended))
    return wire.encode(msgspec.structs.replace(message, outputs=outputs)), AbortChoices(ended)
