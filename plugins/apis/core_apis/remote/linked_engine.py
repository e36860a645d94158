"""A connection to an engine through the link of its API server.

Owns: `LinkedEngine`: one channel, with the interface of a client's connection. Never does: know the socket. Called by:
`ZmqClient`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Protocol

from core.api.errors import EngineDeadError
from core_apis.processes.engine_events import EngineEvents
from core_apis.remote.sockets import MOST_BYTES
from core_supervision.link.connection import EngineConnection, Voice


class Carrier(Protocol):
    """The carrier of the messages of channels."""

    def post(self, channel: int, payload: bytes) -> None:
        """Send a message over a channel."""
        ...

    def drop(self, channel: int) -> None:
        """Close a channel."""
        ...


class LinkedEngine(EngineConnection):
    """One channel to the engine.

    address: of the engine, from its report.
    channel: its number.
    """

    max_message_bytes = MOST_BYTES

    def __init__(self, address: str, channel: int, carrier: Carrier, news: EngineEvents) -> None:
        super().__init__(address)
        self._channel = channel
        self._carrier = carrier
        self._news = news
        self._inbox: asyncio.Queue[bytes] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[float] = loop.create_future()
        self._sent: asyncio.Future[None] = loop.create_future()
        self._sent.set_result(None)

    def opened(self, clock_offset_s: float) -> None:
        """Note that the engine has opened this channel. clock_offset_s: the engine's monotonic clock minus ours."""
        if not self._opened.done():
            self._opened.set_result(clock_offset_s)

    def take(self, payload: bytes) -> None:
        """Queue a message of the engine."""
        self._inbox.put_nowait(payload)

    def post(self, payload: bytes) -> Awaitable[object]:
        """Send a message, as in `EngineConnection`; nothing happens if the engine is gone, which `until_ended` reports."""
        self._carrier.post(self._channel, payload)
        return self._sent

    async def until_ended(self, voice: Voice) -> EngineDeadError:
        """Wait for the end as in `EngineConnection`, and return the cause that the engine's command reports."""
        error = await self._news.obituary(self.address, None)
        return error or EngineDeadError("The engine has ended.", cause="exit")

    async def leave(self, grace_s: float) -> None:
        """Do nothing: closing the channel announces it at the other end."""

    def close(self) -> None:
        """Close the channel, as in `EngineConnection`."""
        self._carrier.drop(self._channel)

    async def _greeted(self, parts: list[bytes]) -> bytes:
        (greeting,) = parts  # the owner of the engine is another process
        self.clock_offset_s = await self._opened
        await self.post(greeting)
        return await self._payload()

    async def _payload(self) -> bytes:
        return await self._inbox.get()
