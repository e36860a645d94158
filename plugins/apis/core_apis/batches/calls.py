"""Calls of this server's own routes, without a connection.

Owns: the ASGI messages of one such call. Never does: choose a route, or retry. Called by: the runs of batches.

A call is a request like any other: it passes all middleware, with the key of its owner.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message


@dataclass
class OwnAnswer:
    """A whole answer. status: 0 when the application gave none. headers: by lower-case name."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)

    async def send(self, message: Message) -> None:
        """Take a part of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {
                name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message["headers"]
            }
        else:
            self.body += message.get("body", b"")


async def answer_to(app: ASGIApp, path: str, body: bytes, key: str | None) -> OwnAnswer:
    """Post a JSON body and return the whole answer. key: an API key; None: the request has none."""
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    if key is not None:
        headers.append((b"authorization", b"Bearer " + key.encode("utf-8", "surrogateescape")))
    answer = OwnAnswer()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        # Nobody disconnects: whoever gives the call up cancels its task.
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": None,
        "server": ("localhost", 0),
        "state": {},
    }
    await app(scope, receive, answer.send)
    return answer
