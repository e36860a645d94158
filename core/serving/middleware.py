"""Plain ASGI middleware: API keys, request ids, the path that a proxy adds.

Owns: these classes. Never does: look into bodies. Called by: `core.serving.app`.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core.api.errors import RequestError
from core.serving.errors import error_response

GUARDED = ("/v1", "/reset_prefix_cache")
REQUEST_ID = re.compile(r"[\w.:\-]{1,128}")


class Authentication:
    """Lets requests for /v1 and those that change the engine through only with `Authorization: Bearer KEY`."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self.app = app
        self.keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer with 401."""
        if scope["type"] != "http" or scope["method"] == "OPTIONS" or not self._guarded(scope) or self._known(scope):
            await self.app(scope, receive, send)
            return
        error = RequestError(
            "The API key is missing or wrong; send it as 'Authorization: Bearer KEY'.",
            status=401,
            code="invalid_api_key",
        )
        await error_response(error, {"www-authenticate": "Bearer"})(scope, receive, send)

    def _guarded(self, scope: Scope) -> bool:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        return bool(path in GUARDED or path.startswith("/v1/"))

    def _known(self, scope: Scope) -> bool:
        scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        given = token.strip().encode()
        matches = [hmac.compare_digest(given, key) for key in self.keys]
        return scheme.lower() == "bearer" and any(matches)


class RequestIds:
    """Answers with `X-Request-Id`: the client's own, or a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and add the header to its answer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = client_request_id(Headers(scope=scope)) or uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        await self.app(scope, receive, send_with_id)


class RootPath:
    """Serves requests with and without the prefix `root_path`, and lets links carry it."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self.app = app
        self.root_path = "/" + root_path.strip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with the prefix known."""
        if scope["type"] == "http":
            scope["root_path"] = self.root_path
        await self.app(scope, receive, send)


def client_request_id(headers: Headers) -> str | None:
    """The client's `X-Request-Id` when it has one that is short and plain."""
    given = headers.get("x-request-id", "")
    return given if REQUEST_ID.fullmatch(given) else None
