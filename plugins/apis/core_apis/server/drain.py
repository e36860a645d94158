"""Draining: the end of a server without loss. Running requests go on, nothing new begins.

Owns: when draining began and ends, the number of running HTTP requests, the refusal of new ones. Never does: end
anything, or wait for the engine. Called by: the launcher (begins, waits), the routes (check), the application (counts
requests).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core.api.errors import RequestError

LONGEST_WAIT_S = 60


class Drain:
    """The draining state of one server. clock: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._num_running = 0
        self._idle = asyncio.Event()
        self._end: float | None = None

    @property
    def begun(self) -> bool:
        """Whether the server only finishes its requests and takes nothing new."""
        return self._end is not None

    @property
    def num_running(self) -> int:
        """Number of requests whose answers are not complete; once draining has begun, only those that began before."""
        return self._num_running

    def begin(self, seconds: float) -> None:
        """Accept nothing new from now on. seconds: time limit of running requests."""
        self._end = self._clock() + seconds
        if not self._num_running:
            self._idle.set()

    def check(self) -> None:
        """Raise RequestError (503) once draining has begun: no new request is answered before the server ends."""
        if self._end is None:
            return
        left = math.ceil(self._end - self._clock())
        retry_after = min(LONGEST_WAIT_S, max(1, left))
        count = self._num_running
        running = "1 request" if count == 1 else f"{count} requests"
        raise RequestError(
            f"The server is shutting down: {running} may still run for {max(0, left)} s, and no new ones are taken. "
            f"Try again in {retry_after} s, or ask another server now.",
            status=503,
            code="server_draining",
            retry_after=retry_after,
        )

    def enter(self) -> bool:
        """Register a request.

        Return whether it counts: the server does not wait for requests that come while it drains.
        """
        if self.begun:
            return False
        self._num_running += 1
        return True

    def leave(self) -> None:
        """Note that a request that counted has its answer."""
        self._num_running -= 1
        if self.begun and not self._num_running:
            self._idle.set()

    async def idle(self) -> None:
        """Wait until all requests that began before draining have their answers."""
        await self._idle.wait()


class DrainGate:
    """Middleware that counts requests, and closes the connections of answers that are given while the server drains."""

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self.app = app
        self.drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, counted while it runs."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif self.drain.enter():
            try:
                await self.app(scope, receive, send)
            finally:
                self.drain.leave()
        else:
            await self.app(scope, receive, _last_answer(send))


def _last_answer(send: Send) -> Send:
    """Wrap `send` for an answer after which the client has to connect again, perhaps to another server."""

    async def send_and_close(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)["connection"] = "close"
        await send(message)

    return send_and_close
