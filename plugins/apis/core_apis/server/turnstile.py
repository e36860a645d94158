"""Admission of requests a few at a time, so that a burst of them does not stop the event loop for everybody else.

Owns: the queue of requests that have not begun. Never does: limit how many run. Called by: `core_apis.app`.
"""

from __future__ import annotations

import asyncio
from collections import deque

from starlette.types import ASGIApp, Receive, Scope, Send

from core_apis.server.middleware import OPEN, PathSet

BATCH = 4  # requests that begin in one iteration of the event loop; each takes a millisecond or two


class Turnstile:
    """Middleware that lets requests begin in turn.

    Probes (the open paths) pass at once: they must be quick in a crowd above all.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.probes = PathSet(OPEN)
        self.free = BATCH
        self.waiting: deque[asyncio.Future[None]] = deque()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on when it is its turn."""
        if scope["type"] == "http" and not self.probes.has(scope):
            await self._wait()
        await self.app(scope, receive, send)

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        if self.free == BATCH:
            loop.call_soon(self._turn)
        if self.free:
            self.free -= 1
            return
        future = loop.create_future()
        self.waiting.append(future)
        await future

    def _turn(self) -> None:
        self.free = BATCH
        while self.free and self.waiting:
            future = self.waiting.popleft()
            if not future.done():  # it may have been cancelled with its task
                future.set_result(None)
                self.free -= 1
        if self.free < BATCH:
            asyncio.get_running_loop().call_soon(self._turn)
