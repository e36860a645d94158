"""How messages travel between a client and an engine process.

Owns: the first message, the encoders and the socket's settings; one ROUTER (client, binds) and one DEALER (engine,
connects) over an ipc socket, one msgpack message a frame. Never does: keep state. Called by: both ends.

The engine greets with `HELLO`; the client answers with `StartEngine`; then `ClientMessage` goes one way and
`EngineMessage` the other.
"""

from __future__ import annotations

from typing import Any

import msgspec
import zmq
import zmq.asyncio

from core.api.config import EngineConfig
from core.api.messages import ClientMessage, EngineMessage

HELLO = b"core-engine-1"
ENGINE_IDENTITY = b"engine"
RECONNECT_MS = 10


class StartEngine(msgspec.Struct, frozen=True):
    """The first message to an engine process. log_level: a number of the `logging` module."""

    epoch: int
    config: EngineConfig
    log_level: int


def encode(message: msgspec.Struct) -> bytes:
    """One message as msgpack."""
    return msgspec.msgpack.encode(message)


def client_message_decoder() -> msgspec.msgpack.Decoder[ClientMessage]:
    """Decoder of the engine's end."""
    return msgspec.msgpack.Decoder(ClientMessage)


def engine_message_decoder() -> msgspec.msgpack.Decoder[EngineMessage]:
    """Decoder of the client's end."""
    return msgspec.msgpack.Decoder(EngineMessage)


def configure(socket: zmq.Socket[Any] | zmq.asyncio.Socket) -> None:
    """No limit of queued messages (the scheduler bounds the work), and last words leave within a second. The engine may
    connect before the client binds: it tries again every few milliseconds."""
    socket.set_hwm(0)
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    socket.setsockopt(zmq.LINGER, 1000)
