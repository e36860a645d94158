"""How messages travel between clients and an engine process.

Owns: the first message of the owner, the encoders and the settings of sockets: one ROUTER (the engine, binds in its run
directory) and any number of DEALERs (clients, connect) over an ipc socket, one msgpack message a frame.
Never does: keep state. Called by: both ends.

A client greets (`core.engine.greeting`); the client that owns the engine adds `StartEngine` as a second frame. The engine
answers with its own greeting and, once it is up, with `EngineReady`. Then `ClientMessage` goes one way and `EngineMessage`
the other.
"""

from __future__ import annotations

from typing import Any

import msgspec
import zmq
import zmq.asyncio

from core.api.config import EngineConfig
from core.api.messages import Choice, ClientMessage, EngineMessage, Handle

RECONNECT_MS = 10


class StartEngine(msgspec.Struct, frozen=True):
    """The configuration of an engine process; the client that sends it owns the engine.

    log_level: a number of the `logging` module.
    """

    epoch: int
    config: EngineConfig
    log_level: int


class RequestName(msgspec.Struct, array_like=True):
    """The beginning of an `EngineRequest`."""

    request_id: str
    choice: Choice


class AddedNames(msgspec.Struct, array_like=True, tag="add"):
    """What is read of an `AddRequest` whose request cannot be read, so that its sequences can be told."""

    request: RequestName
    handles: list[Handle]


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
    """No limit of queued messages (the scheduler bounds the work), and last words leave within a second. A client may
    connect before the engine binds: it tries again every few milliseconds."""
    socket.set_hwm(0)
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    socket.setsockopt(zmq.LINGER, 1000)
