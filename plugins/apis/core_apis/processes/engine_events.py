"""The engine of an API process (owned by the supervisor) or of an API server (owned by another command).

Owns: `EngineEvents`, the owner's latest report about the engine, and `SharedEngineSource`, which connects accordingly.
Never does: start or end an engine. Called by: the API process and the API server (they report), `AsyncEngine` and its
recovery (connect).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from core.api.errors import EngineDeadError
from core_apis.processes.api_messages import EngineAt, EngineDied, EngineEvent, EngineGone
from core_frontend.group.member import ENDED
from core_supervision.link.connection import EngineConnection, SocketConnection, Voice
from core_supervision.link.zmq_client import ZmqClient

OBITUARY_S = 2.0
"""Seconds that the supervisor has to report an engine's cause of death."""


class EngineEvents:
    """The latest report. address: of the running engine; None: there is none at the moment."""

    def __init__(self, address: str | None = None) -> None:
        self.address: str | None = address
        self._death: EngineDeadError | None = None
        self._gone: EngineDeadError | None = None
        self._changed = asyncio.Event()

    def report(self, message: EngineEvent) -> None:
        """Store a report, and wake the waiting tasks."""
        match message:
            case EngineAt():
                self.address, self._gone = message.address, None  # an operator may have ended the one before
            case EngineDied():
                self.address = None
                self._death = EngineDeadError(message.sentence, cause=message.cause, suspects=message.suspects)
            case EngineGone():
                self.address = None
                self._gone = EngineDeadError(message.sentence, cause=message.cause)
        self._changed.set()
        self._changed = asyncio.Event()

    def check(self, *, waits: bool = False) -> None:
        """Raise EngineDeadError if there will be no further engine. waits: where an operator has ended it, there may be one."""
        if self._gone is not None and not (waits and self._gone.cause == ENDED):
            raise self._gone

    async def change(self) -> None:
        """Wait for the next report."""
        await self._changed.wait()

    async def obituary(self, address: str, patience_s: float | None = OBITUARY_S) -> EngineDeadError | None:
        """Return the cause of death of the engine at `address`, once it is reported; None if that takes too long.

        patience_s: seconds to wait; None: no limit.
        """
        try:
            async with asyncio.timeout(patience_s):
                while self.address == address and self._gone is None:
                    await self.change()
        except TimeoutError:
            return None
        return self._death or self._gone


class SharedEngine(SocketConnection):
    """A connection to an engine whose cause of death the supervisor knows better."""

    def __init__(self, address: str, news: EngineEvents) -> None:
        super().__init__(address)
        self._news = news

    async def until_ended(self, voice: Voice) -> EngineDeadError:
        """Wait until the connection ends, and return the cause that the supervisor reports, else the one seen from
        here.
        """
        seen_from_here = await super().until_ended(voice)
        return await self._news.obituary(self.address) or seen_from_here


class SharedEngineSource:
    """A source of connections to the current engine of its owner.

    connect:      makes a connection to an address.
    on_client:    called with each new client.
    on_explained: called with the number of deaths that one request is now known to have caused.
    """

    def __init__(
        self,
        news: EngineEvents,
        connect: Callable[[str], EngineConnection],
        on_client: Callable[[ZmqClient], None],
        on_explained: Callable[[int], None],
    ) -> None:
        self._news = news
        self._connection = connect
        self._on_client = on_client
        self._on_explained = on_explained

    async def first(self) -> ZmqClient:
        """Connect to the current engine. Raises EngineDeadError if there is none, and only an order would start one."""
        return await self._current(waits=False)

    async def _current(self, *, waits: bool) -> ZmqClient:
        """Connect to the current engine, once there is one. waits: whether an operator may have ordered its start."""
        while True:
            self._news.check(waits=waits)
            address = self._news.address
            if address is None:
                await self._news.change()
                continue
            client = await self._connect(address)
            if client is not None:
                self._on_client(client)
                return client

    async def next(self, dead: EngineDeadError, num_explained: int = 0) -> ZmqClient:
        """Connect to the next engine.

        The address of the dead engine is not tried for long, since the report of its death is on the way.
        """
        if num_explained:
            self._on_explained(num_explained)
        return await self._current(waits=True)

    async def close(self) -> None:
        """Do nothing: this source owns no engine."""

    async def _connect(self, address: str) -> ZmqClient | None:
        """Return a client; None if a report comes before the engine answers.

        There is no time limit: an engine in a long call answers late, and its owner reports one that hangs.
        """
        connection = self._connection(address)
        connecting = asyncio.ensure_future(ZmqClient.connect(address, timeout_s=None, engine=connection))
        changing = asyncio.ensure_future(self._news.change())
        try:
            await asyncio.wait({connecting, changing}, return_when=asyncio.FIRST_COMPLETED)
            return await connecting if connecting.done() else None
        finally:
            for task in (connecting, changing):
                task.cancel()
            await asyncio.gather(connecting, changing, return_exceptions=True)
