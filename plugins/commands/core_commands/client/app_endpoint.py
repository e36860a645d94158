"""An application in this process: requests reach it as a server would hand them over, without a socket.

Owns: ASGI's messages of one request. Never does: build the application, or end it. Called by: `own_engine`, tests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.types import ASGIApp, Message

from core_commands.client.endpoint import EndpointError


class AppEndpoint:
    """As `Endpoint`. app: of ASGI. name: for people."""

    def __init__(self, app: ASGIApp, name: str = "the engine of this command") -> None:
        self.name = name
        self._app = app

    @asynccontextmanager
    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[AppAnswer]:
        """As `Endpoint.ask`."""
        answer = AppAnswer(body, self.name)
        running = asyncio.ensure_future(self._app(_scope(method, path, headers or {}), answer.receive, answer.send))
        running.add_done_callback(answer.ended)
        try:
            await answer.begin()
            yield answer
        finally:
            if not answer.is_whole:
                running.cancel()
            await asyncio.gather(running, return_exceptions=True)  # the answer that breaks off tells of its error

    async def close(self) -> None:
        """As `Endpoint.close`: there is nothing to give back."""


class AppAnswer:
    """As `Answer`, written by the application."""

    def __init__(self, body: bytes, name: str) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.arrived = 0.0
        self.is_whole = False
        self._name = name
        self._body: bytes | None = body
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()

    async def receive(self) -> Message:
        """ASGI: the body at once. Then nothing: a client that leaves is a task that is cancelled."""
        body, self._body = self._body, None
        if body is None:
            await asyncio.get_running_loop().create_future()
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        """ASGI: a part of the answer."""
        self._messages.put_nowait(message)

    def ended(self, running: asyncio.Future[Any]) -> None:
        """The application is done, one way or another; its reader hears of it."""
        self._messages.put_nowait(None)

    async def begin(self) -> None:
        """Until status and headers are there. Raises EndpointError."""
        message = await self._next()
        self.status = int(message["status"])
        for name, value in message["headers"]:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    async def parts(self) -> AsyncIterator[bytes]:
        """As `Answer.parts`."""
        while not self.is_whole:
            message = await self._next()
            self.is_whole = not message.get("more_body", False)
            if message.get("body"):
                yield message["body"]

    async def _next(self) -> Message:
        message = await self._messages.get()
        self.arrived = time.perf_counter()
        if message is None:
            raise EndpointError(f"{self._name}: the answer broke off.")
        return message


def _scope(method: str, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """A request as a server describes it."""
    raw = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    for name, value in headers.items():
        raw.append((name.lower().encode("latin-1"), value.encode("latin-1")))
    path, _, query = path.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": raw,
        "client": None,
        "server": ("localhost", 0),
        "state": {},
    }
