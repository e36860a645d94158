"""Reading of request bodies and writing of JSON answers.

Owns: the size limits, of one body and of all together, the check of the content type, JSON responses. Never does:
decode, or know a route. Called by: intake and routes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
from fastapi import Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from core.api.errors import RequestError
from core_apis.errors import ClientGone

JSON = "application/json"
LONG_ANSWER = 1 << 20
"""Size in bytes from which an answer is sent in pieces."""
PIECE_BYTES = 1 << 16
PIECES_AT_ONCE = 16
"""Number of pieces of an answer that are sent as one write, a few MB at most."""
BODY_PIECE = 1 << 20
SHORT_BODY = 1 << 20
"""Bytes of a body that a route decodes by itself: one of 32 MB would hold up all streams for 50 ms, in any thread."""
LARGEST_BODIES = 4
"""Limit on all bodies that are being read at the same time, as a multiple of the largest body size."""


class BodyRoom:
    """The memory budget for bodies until they are prepared. max_body_size: bytes of one body."""

    def __init__(self, max_body_size: int) -> None:
        self.max_body_size = max_body_size
        self.num_bytes = 0

    @contextmanager
    def body(self, most: int | None = None) -> Iterator[Body]:
        """Reserve room for one body, and release it at the end. most: its bytes, where that is less than `max_body_size`."""
        body = Body(self, most)
        try:
            yield body
        finally:
            self.num_bytes -= body.num_bytes
            body.free()


class Body:
    """What has come of one body so far.

    pieces: its bytes, in pieces of at least `BODY_PIECE` but the last. One buffer of 32 MB would be moved as it grows,
    which stopped the event loop for up to 66 ms.
    """

    def __init__(self, room: BodyRoom, most: int | None = None) -> None:
        self._room = room
        self._most = most
        self.pieces = [bytearray()]
        self.num_bytes = 0

    def add(self, part: bytes) -> None:
        """Append a part. Raises RequestError if one body (413) or all bodies of the server (503) are too large."""
        self.check(self.num_bytes + len(part))
        room = self._room
        if room.num_bytes + len(part) > LARGEST_BODIES * room.max_body_size:
            raise RequestError(
                f"The server is busy: request bodies of {room.num_bytes >> 20} MiB are being read. Try again in 1 s.",
                status=503,
                code="server_busy",
                retry_after=1,
            )
        room.num_bytes += len(part)
        self.num_bytes += len(part)
        if len(self.pieces[-1]) >= BODY_PIECE:
            self.pieces.append(bytearray())
        self.pieces[-1] += part

    def free(self) -> None:
        """Free the bytes, whoever still refers to them.

        The frames of a refusal do, until garbage is collected; that then took 20 ms of the event loop.
        """
        for piece in self.pieces:
            with suppress(BufferError):  # a helper process is still being sent this piece
                piece.clear()
        self.pieces = [bytearray()]

    def check(self, num_bytes: int) -> None:
        """Raise RequestError (413) if a body of `num_bytes` is too large."""
        limit = self._room.max_body_size
        most = limit if self._most is None else min(limit, self._most)
        if num_bytes > most:
            source = " (--max-body-size)" if most == limit else ", the limit of this path"
            raise RequestError(
                f"The request body is larger than {most} bytes{source}; send less.",
                status=413,
                code="body_too_large",
            )


async def read_body(request: Request, body: Body, expected: str = JSON) -> Sequence[bytearray]:
    """Read the request's body into `body`, and return its pieces, at least one. expected: its content type.

    Raises RequestError with status 413, 415 or 503, ClientGone.
    """
    media_type, _, _ = request.headers.get("content-type", JSON).partition(";")
    content_type = media_type.strip().lower()
    if content_type != expected and not (expected == JSON and content_type.endswith("+json")):
        raise RequestError(
            f"The content type is '{content_type}'; expected '{expected}'.",
            status=415,
            code="unsupported_media_type",
        )
    declared = request.headers.get("content-length", "")
    is_number = declared.isascii() and declared.isdigit()
    body.check(int(declared) if is_number else 0)
    try:
        async for part in request.stream():
            body.add(part)
    except ClientDisconnect:
        raise ClientGone("The client closed the connection in the middle of its request.") from None
    return body.pieces


class PiecesResponse(Response):
    """A 200 response whose body is sent in pieces, which are never joined: together they may be hundreds of MB."""

    def __init__(
        self,
        pieces: Sequence[bytes | memoryview],
        media_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        length = {"content-length": str(sum(map(len, pieces)))}
        super().__init__(media_type=media_type, headers={**length, **(headers or {})})
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the start of the response, then its pieces."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for start in range(0, len(self._pieces), PIECES_AT_ONCE):
            some = b"".join(self._pieces[start : start + PIECES_AT_ONCE])
            await send({"type": "http.response.body", "body": some, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def json_response(body: Any) -> Response:
    """Return a 200 response with `body` (Structs, dicts, lists) as JSON."""
    return written_response(msgspec.json.encode(body))


def written_response(data: bytes) -> Response:
    """Return a 200 response with serialized JSON; a long one is sent in pieces, so that other requests get their turn."""
    if len(data) <= LONG_ANSWER:
        return Response(data, media_type="application/json")
    view = memoryview(data)
    return PiecesResponse([view[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES)])
