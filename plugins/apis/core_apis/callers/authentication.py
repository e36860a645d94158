"""Authentication of requests by API key.

Owns: `Authentication`, which lets requests through or refuses them. Never does: look into bodies, or know users. Called
by: `core_apis.app`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence

from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from core.api.errors import RequestError
from core_apis.errors import error_response
from core_apis.server.middleware import OPEN, PathSet


class Authentication:
    """Middleware that lets requests with `Authorization: Bearer KEY` or `X-Api-Key: KEY` through, and requests for a
    few open paths.

    Everything else is refused, whether it exists or not, unless `needs_key` is False: then requests without a key pass,
    and the keys only identify the operator. Keys are kept as hashes; the index of the matching one becomes
    `request.state.api_key`.
    """

    def __init__(
        self, app: ASGIApp, keys: Sequence[str], open_paths: Iterable[str] = OPEN, *, needs_key: bool = True
    ) -> None:
        self.app = app
        self.digests = [_digests(key) for key in keys]
        self.open = PathSet(open_paths)
        self.needs_key = needs_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer with 401."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        number = self._matching_key(scope)
        if number is not None:
            scope.setdefault("state", {})["api_key"] = number
        elif self.needs_key and not self.open.has(scope):
            await self._refuse(scope, receive, send)
            return
        await self.app(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await WebSocketClose()(scope, receive, send)
            return
        error = RequestError(
            "The API key is missing or wrong; send it as 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'.",
            status=401,
            code="invalid_api_key",
        )
        answer = error_response(error, {"www-authenticate": "Bearer"}, scope)
        await answer(scope, receive, send)

    def _matching_key(self, scope: Scope) -> int | None:
        """Return the index of the key that the request carries, or None.

        All keys are compared, each in constant time.
        """
        matching: int | None = None
        for token in _tokens(scope):
            given = hashlib.sha256(token.strip()).digest()
            for number, digests in enumerate(self.digests):
                matches = [hmac.compare_digest(given, digest) for digest in digests]
                if matching is None and any(matches):
                    matching = number
        return matching


def _tokens(scope: Scope) -> list[bytes]:
    """Return the keys of a request: from its first `Authorization` header and its first `X-Api-Key` header."""
    tokens: list[bytes] = []
    scheme, _, token = _header(scope, b"authorization").partition(b" ")
    if scheme.lower() == b"bearer":
        tokens.append(token)
    plain = _header(scope, b"x-api-key")
    if plain:
        tokens.append(plain)
    return tokens


def _header(scope: Scope, wanted: bytes) -> bytes:
    """Return the value of the first header of that name; empty if there is none."""
    for name, value in scope["headers"]:
        if name == wanted:
            header: bytes = value
            return header
    return b""


def _digests(key: str) -> list[bytes]:
    return [hashlib.sha256(spelling).digest() for spelling in _spellings(key)]


def _spellings(key: str) -> set[bytes]:
    """Return the byte sequences that clients send for `key`: UTF-8, and Latin-1 if the key can be encoded in it."""
    spellings = {key.encode("utf-8", "surrogateescape")}
    if all(ord(character) < 256 for character in key):
        spellings.add(key.encode("latin-1"))
    return spellings
