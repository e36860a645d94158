"""The messages between the supervisor and its API processes.

Owns: the messages and the channel that carries them. Never does: act on them. Called by: both ends.

The supervisor sends `Begin` once, then engine events and finally `Stop`. The API process sends `Alive` all the time,
`Serving` whenever it has a connection to an engine, and `Explained` when it knows why engines died. Either may request
metrics: an API process that is scraped asks the supervisor, which asks all others. An order of an operator likewise goes from
the API process that has got it to the supervisor, and from there to all API processes.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Literal

import msgspec

from core.api.config import EngineConfig
from core_config.served.server_config import ServerConfig
from core_observers.shared_metrics import Family
from core_supervision.helpers.messages import HEADER_BYTES, header
from core_tokens.tokenizer_source import TokenizerSource

PULSE_S = 5.0

OrderAction = Literal["drain", "undrain", "rebalance", "scale", "is_scaling"]
PartAction = Literal["drain", "leave", "rejoin", "undrain", "count", "move"]


class Begin(msgspec.Struct, tag="begin"):
    """The first message of the supervisor: everything that an API process needs to serve.

    number: of the process, from 0.
    addresses: of the engines; None for one that is being started again.
    engine, server: configurations with the limits of this process.
    explained: the configuration as plain values, for the page.
    drained: places of the engines that an operator has taken out.
    """

    number: int
    addresses: list[str | None]
    engine: EngineConfig
    server: ServerConfig
    tokenizer: TokenizerSource
    explained: dict[str, Any] = {}
    drained: list[int] = []


class EngineDied(msgspec.Struct, tag="died"):
    """The engine has died. Fields: those of EngineDeadError. engine: its place in the group."""

    sentence: str
    cause: str
    suspects: tuple[int, ...]
    engine: int = 0


class EngineAt(msgspec.Struct, tag="engine"):
    """The next engine runs. address: where clients connect. engine: its place in the group."""

    address: str
    engine: int = 0


class EngineGone(msgspec.Struct, tag="gone"):
    """There will be no further engine; with cause `ENDED`, none until an operator wants one.

    Fields: those of EngineDeadError. engine: its place in the group.
    """

    sentence: str
    cause: str
    engine: int = 0


class Stop(msgspec.Struct, tag="stop"):
    """The process has to end. at_once: without waiting for running requests."""

    at_once: bool = False


class Serving(msgspec.Struct, tag="serving"):
    """The process serves requests. client: the engine's number for this process. epoch: of that engine, at place `engine`."""

    client: int
    epoch: int
    engine: int = 0


class Explained(msgspec.Struct, tag="explained"):
    """One request, which has ended, caused the latest deaths of engines. num_deaths: their number, at place `engine`."""

    num_deaths: int
    engine: int = 0


class Alive(msgspec.Struct, tag="alive"):
    """The event loop of this process is running. Sent every `PULSE_S` seconds."""


class MetricsRequest(msgspec.Struct, tag="ask"):
    """A request for the metrics of one process (from the supervisor), or of all others (to the supervisor)."""

    question: int


class MetricsReply(msgspec.Struct, tag="tell"):
    """The answer to `MetricsRequest`: metrics keyed by the number of their process."""

    question: int
    families: dict[int, list[Family]]


class OperatorOrder(msgspec.Struct, tag="order"):
    """What an operator wants of an engine, or of all.

    ends: of a drain, whether the engine's process ends afterwards. size: engines that are wanted. drain_s: see `Orders.scale`.
    """

    question: int
    action: OrderAction
    engine: int = 0
    ends: bool = False
    size: int = 0
    drain_s: float = 0.0


class PartOfOrder(msgspec.Struct, tag="part"):
    """What each API process does for an order, with its own requests and its own connection to the engine.

    action: drain: have its requests leave the engine; leave: disconnect, as the engine is about to end; rejoin: connect again,
        as it has not ended; undrain: send it requests again; count: answer with its requests by engine; move: have a request
        change engines for each pair of `moves`, (from, to).
    patience_s: of a drain, for the end of requests where they are. leaving: all engines that are drained at the same time.
    """

    question: int
    action: PartAction
    engine: int = 0
    moves: list[tuple[int, int]] = []
    patience_s: float = 0.0
    leaving: list[int] = []


class Refusal(msgspec.Struct):
    """Why an order was not carried out. Fields: those of RequestError."""

    sentence: str
    status: int
    code: str
    param: str | None = None


class OrderDone(msgspec.Struct, tag="done"):
    """The answer to `OperatorOrder` and `PartOfOrder`.

    moved, computed, stayed, died: see `core_frontend.group.orders.Moved`. counts: requests by engine. has_left: whether it is
    disconnected. is_scaling: whether the number of engines is being changed.
    """

    question: int
    moved: int = 0
    computed: int = 0
    stayed: int = 0
    died: int = 0
    counts: dict[int, int] = {}
    has_left: bool = True
    is_scaling: bool = False
    refusal: Refusal | None = None


class MissedCall(msgspec.Struct, tag="missed"):
    """A call that all engines have executed but one that was ended, which has to get it when it is started."""

    engine: int
    method: str
    arguments: dict[str, Any]


EngineEvent = EngineDied | EngineAt | EngineGone
ToApi = Begin | EngineEvent | Stop | MetricsRequest | MetricsReply | PartOfOrder | OrderDone
FromApi = Serving | Explained | Alive | MetricsRequest | MetricsReply | OperatorOrder | OrderDone | MissedCall


class Channel:
    """One end of the connection. kind: the type of incoming messages."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: Any) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = msgspec.msgpack.Decoder(kind)

    @classmethod
    async def open(cls, connection: socket.socket, kind: Any) -> Channel:
        """Make a channel of a connected socket, which the channel owns from now on."""
        reader, writer = await asyncio.open_connection(sock=connection)
        return cls(reader, writer, kind)

    def send(self, message: msgspec.Struct) -> None:
        """Send a message without waiting; nothing happens if the other end is gone."""
        if self._writer.is_closing():
            return
        payload = msgspec.msgpack.encode(message)
        self._writer.write(header(len(payload)) + payload)

    async def receive(self) -> Any:
        """Return the next message; None at the end of the connection."""
        try:
            size = int.from_bytes(await self._reader.readexactly(HEADER_BYTES), "little")
            return self._decoder.decode(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, OSError):
            return None

    def close(self) -> None:
        """Close this end of the connection."""
        self._writer.close()
