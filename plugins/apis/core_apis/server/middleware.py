"""Plain ASGI middleware (request ids, weight versions, HEAD, the path prefix of a proxy), and sets of paths for other
middleware.

Owns: these classes. Never does: look into bodies. Called by: `core_apis.app`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN = ("/health", "/ping", "/ready", "/readyz", "/live", "/version", "/metrics")
"""The paths that need no key."""

REQUEST_ID = re.compile(r"[A-Za-z0-9_.:\-]{1,128}")


class PathSet:
    """A set of paths, matched by the routes' own code on the same value: no spelling means different things in both."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.routes = [Route(path, _nothing) for path in paths]

    def has(self, scope: Scope) -> bool:
        """Whether the request is for one of the paths, whatever its method."""
        for route in self.routes:
            match, _ = route.matches(scope)
            if match != Match.NONE:
                return True
        return False


def _nothing(request: Request) -> None:
    """Do nothing; never called: a route needs an endpoint."""


class RequestIds:
    """Middleware that answers with `X-Request-Id`: the client's own, or a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and add the header to its answer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = request_id_of(scope)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer_headers = MutableHeaders(scope=message)
                answer_headers["x-request-id"] = request_id
            await send(message)

        await self.app(scope, receive, send_with_id)


class WeightVersions:
    """Middleware that answers with `X-Weight-Version` once weights were replaced.

    version: of the current ones; empty before that.
    """

    def __init__(self, app: ASGIApp, version: Callable[[], str]) -> None:
        self.app = app
        self.version = version

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and add the header to its answer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_version(message: Message) -> None:
            version = self.version()
            if message["type"] == "http.response.start" and version:
                MutableHeaders(scope=message)["x-weight-version"] = version
            await send(message)

        await self.app(scope, receive, send_with_version)


class HeadRequests:
    """Middleware that answers HEAD like GET, without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on as a GET."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return

        async def send_without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        # A copy: the server, which owns the scope, must remember that it was HEAD.
        as_get = {**scope, "method": "GET"}
        await self.app(as_get, receive, send_without_body)


class TraceParents:
    """Middleware that attaches requests to the traces that their headers name. following: see `Tracing`."""

    def __init__(self, app: ASGIApp, following: Callable[[Mapping[str, str]], AbstractContextManager[None]]) -> None:
        self.app = app
        self.following = following

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on within its trace."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        with self.following(Headers(scope=scope)):
            await self.app(scope, receive, send)


class RootPath:
    """Middleware that serves requests with and without the prefix `root_path`, and adds it to links."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self.app = app
        self.root_path = "/" + root_path.strip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with the prefix set."""
        if scope["type"] in ("http", "websocket"):
            scope["root_path"] = self.root_path
        await self.app(scope, receive, send)


def client_request_id(headers: Headers) -> str | None:
    """Return the client's `X-Request-Id` if it is short and plain."""
    given = headers.get("x-request-id", "")
    return given if REQUEST_ID.fullmatch(given) else None


def request_id_of(scope: Scope) -> str:
    """Return the id of a request: the client's own if it is short and plain, else a new one."""
    return client_request_id(Headers(scope=scope)) or uuid4().hex
