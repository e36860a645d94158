"""A connection to an engine behind the link of its front.

Owns: `LinkedEngine`: one channel as a client of the engine sees it. Never does: know the socket. Called by: `ZmqClient`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Protocol

from core.api.errors import EngineDeadError
from core_apis.engine_news import EngineNews
from core_apis.remote.sockets import MOST_BYTES
from core_supervision.link.connection import EngineConnection, Voice


class Carrier(Protocol):
    """What carries the messages of channels."""

    def post(self, channel: int, payload: bytes) -> None:
        """Send one."""
        ...

    def drop(self, channel: int) -> None:
        """A channel is not used any more."""
        ...


class LinkedEngine(EngineConnection):
    """One channel.

    address: that the news told of the engine.
    channel: its number.
    """

    max_message_bytes = MOST_BYTES

    def __init__(self, address: str, channel: int, carrier: Carrier, news: EngineNews) -> None:
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
        """The engine knows of this channel. clock_offset_s: what its monotonic clock is ahead of ours."""
        if not self._opened.done():
            self._opened.set_result(clock_offset_s)

    def take(self, payload: bytes) -> None:
        """A message of the engine has come."""
        self._inbox.put_nowait(payload)

    def post(self, payload: bytes) -> Awaitable[object]:
        """As above; nothing happens when the engine is gone, which `until_ended` tells."""
        self._carrier.post(self._channel, payload)
        return self._sent

    async def until_ended(self, voice: Voice) -> EngineDeadError:
        """As above, with the cause that the engine's command tells."""
        error = await self._news.obituary(self.address, None)
        return error or EngineDeadError("The engine has ended.", cause="exit")

    async def leave(self, grace_s: float) -> None:
        """Closing the channel says it, at the other end."""

    def close(self) -> None:
        """As above."""
        self._carrier.drop(self._channel)

    async def _greeted(self, parts: list[bytes]) -> bytes:
        (greeting,) = parts  # its owner is elsewhere
        self.clock_offset_s = await self._opened
        await self.post(greeting)
        return await self._payload()

    async def _payload(self) -> bytes:
        return await self._inbox.get()
