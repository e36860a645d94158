"""What the supervisor and its API processes say to each other.

Owns: the messages and the channel that carries them. Never does: act on them. Called by: both ends.

The supervisor says `Begin` once, then what becomes of the engine, and `Stop`. The API process says `Alive` all the time,
`Serving` whenever it has a connection to an engine, and `Explained` when it knows why engines died. Either may ask for metrics:
an API process that is scraped asks the supervisor, which asks all others.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import msgspec

from core.api.config import EngineConfig
from core_config.server_config import ServerConfig
from core_grammars.helper_process import HEADER_BYTES, header
from core_observers.shared_metrics import Family
from core_tokens.tokenizer_source import TokenizerSource

PULSE_S = 5.0


class Begin(msgspec.Struct, tag="begin"):
    """Everything that an API process needs to serve.

    number: of the process, from 0.
    address: of the engine.
    engine, server: with the limits that this process has.
    explained: the configuration as plain values, for the page.
    """

    number: int
    address: str
    engine: EngineConfig
    server: ServerConfig
    tokenizer: TokenizerSource
    explained: dict[str, Any] = {}


class EngineDied(msgspec.Struct, tag="died"):
    """The engine is gone. Fields: as of EngineDeadError."""

    sentence: str
    cause: str
    suspects: tuple[int, ...]


class EngineAt(msgspec.Struct, tag="engine"):
    """The next engine runs. address: that clients connect to."""

    address: str


class EngineGone(msgspec.Struct, tag="gone"):
    """There is no further engine. Fields: as of EngineDeadError."""

    sentence: str
    cause: str


class Stop(msgspec.Struct, tag="stop"):
    """End. at_once: without waiting for what runs."""

    at_once: bool = False


class Serving(msgspec.Struct, tag="serving"):
    """Requests are served. client: the number that the engine knows this process by. epoch: of that engine."""

    client: int
    epoch: int


class Explained(msgspec.Struct, tag="explained"):
    """One request, which has ended, was the cause of the latest deaths of engines. num_deaths: their number."""

    num_deaths: int


class Alive(msgspec.Struct, tag="alive"):
    """The loop of this process turns. Said every `PULSE_S`."""


class AskMetrics(msgspec.Struct, tag="ask"):
    """Wanted: the metrics of one process (asked by the supervisor), or of all others (asked of it)."""

    question: int


class TellMetrics(msgspec.Struct, tag="tell"):
    """The answer to `AskMetrics`: metrics by the number of their process."""

    question: int
    families: dict[int, list[Family]]


News = EngineDied | EngineAt | EngineGone
ToApi = Begin | News | Stop | AskMetrics | TellMetrics
FromApi = Serving | Explained | Alive | AskMetrics | TellMetrics


class Channel:
    """One end of the connection. kind: what comes in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: Any) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = msgspec.msgpack.Decoder(kind)

    @classmethod
    async def open(cls, connection: socket.socket, kind: Any) -> Channel:
        """Over a connected socket, which is the channel's from now on."""
        reader, writer = await asyncio.open_connection(sock=connection)
        return cls(reader, writer, kind)

    def send(self, message: msgspec.Struct) -> None:
        """Send, without waiting; nothing happens when the other end is gone."""
        if self._writer.is_closing():
            return
        payload = msgspec.msgpack.encode(message)
        self._writer.write(header(len(payload)) + payload)

    async def receive(self) -> Any:
        """The next message; None at the end."""
        try:
            size = int.from_bytes(await self._reader.readexactly(HEADER_BYTES), "little")
            return self._decoder.decode(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, OSError):
            return None

    def close(self) -> None:
        """Hang up."""
        self._writer.close()
