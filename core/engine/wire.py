"""The wire format between clients and an engine process.

Owns: the first message of the owner, the encoders and the settings of sockets: one ROUTER (the engine, binds in its run
directory) and any number of DEALERs (clients, connect) over an ipc socket, one msgpack message a frame.
Never does: keep state. Called by: both ends.

A client sends a greeting (`core.engine.hello`); the owner of the engine adds `StartEngine` as a second frame. The engine
answers with its own greeting and, once it is ready, with `EngineReady`. Then clients send `ClientMessage` and the engine sends
`EngineMessage`.
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
    """The first fields of an `EngineRequest`, which can be decoded when later ones cannot."""

    request_id: str
    choice: Choice


class AddedNames(msgspec.Struct, array_like=True, tag="add"):
    """The part of an unreadable `AddRequest` that is still decoded, so that its sequences can be refused."""

    request: RequestName
    handles: list[Handle]


def encode(message: msgspec.Struct) -> bytes:
    """Encode one message as msgpack."""
    return msgspec.msgpack.encode(message)


def client_message_decoder() -> msgspec.msgpack.Decoder[ClientMessage]:
    """Return a decoder for messages that the engine receives."""
    return msgspec.msgpack.Decoder(ClientMessage)


def engine_message_decoder() -> msgspec.msgpack.Decoder[EngineMessage]:
    """Return a decoder for messages that a client receives."""
    return msgspec.msgpack.Decoder(EngineMessage)


def configure(socket: zmq.Socket[Any] | zmq.asyncio.Socket) -> None:
    """Set the options of a socket: no limit of queued messages, quick reconnects, a second for the last messages."""
    # The scheduler limits the work. A limit here would block the engine, or drop messages, when one client reads slowly.
    socket.set_hwm(0)
    # A client may connect before the engine binds.
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    socket.setsockopt(zmq.LINGER, 1000)
