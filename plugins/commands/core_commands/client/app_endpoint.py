"""An in-process endpoint: requests reach an ASGI application directly, without a socket.

Owns: the ASGI messages of one request. Never does: build or shut down the application. Called by: `own_engine`, tests.
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
    """An `Endpoint` over an ASGI application. app: the application. name: for messages."""

    def __init__(self, app: ASGIApp, name: str = "the engine of this command") -> None:
        self.name = name
        self._app = app

    @property
    def context(self) -> Any:
        """Return the serving context of the server's own application."""
        return getattr(self._app, "state").context  # noqa: B009

    @asynccontextmanager
    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[AppAnswer]:
        """Send one request, as `Endpoint.ask` does."""
        answer = AppAnswer(body, self.name)
        running = asyncio.ensure_future(self._app(_scope(method, path, headers or {}), answer.receive, answer.send))
        running.add_done_callback(answer.ended)
        try:
            await answer.begin()
            yield answer
        finally:
            if not answer.is_whole:
                running.cancel()
            await asyncio.gather(running, return_exceptions=True)  # the interrupted answer reports the error

    async def close(self) -> None:
        """Do nothing: there are no connections to close."""


class AppAnswer:
    """An `Answer` written by the application."""

    def __init__(self, body: bytes, name: str) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.arrived = 0.0
        self.is_whole = False
        self._name = name
        self._body: bytes | None = body
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()

    async def receive(self) -> Message:
        """Return the whole body at once, then block: a client that leaves cancels the task."""
        body, self._body = self._body, None
        if body is None:
            await asyncio.get_running_loop().create_future()
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        """Receive a part of the answer from the application."""
        self._messages.put_nowait(message)

    def ended(self, running: asyncio.Future[Any]) -> None:
        """Mark the application as finished, and wake the reader."""
        self._messages.put_nowait(None)

    async def begin(self) -> None:
        """Wait until status and headers have arrived. Raises EndpointError."""
        message = await self._next()
        self.status = int(message["status"])
        for name, value in message["headers"]:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the body's parts, as `Answer.parts` does."""
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
    """Build the ASGI scope of a request."""
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
