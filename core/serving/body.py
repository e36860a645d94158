"""Reads request bodies and writes JSON answers.

Owns: the size limit, the check of the content type, JSON responses. Never does: know a route.
Called by: routes.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from fastapi import Request, Response

from core.api.errors import RequestError
from core.serving.protocol.decoding import decode_body

MAX_BODY_BYTES = 64 * 2**20

T = TypeVar("T")


async def read_body(request: Request, decoder: msgspec.json.Decoder[T]) -> T:
    """The decoded body of `request`; RequestError with status 400, 413 or 415 when it cannot be had."""
    content_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise RequestError(
            f"The content type is '{content_type}'; expected 'application/json'.",
            status=415,
            code="unsupported_media_type",
        )
    parts = bytearray()
    async for part in request.stream():
        parts += part
        if len(parts) > MAX_BODY_BYTES:
            raise RequestError(
                f"The request body is larger than {MAX_BODY_BYTES >> 20} MiB; send less.",
                status=413,
                code="body_too_large",
            )
    return decode_body(decoder, bytes(parts))


def json_response(body: Any) -> Response:
    """A 200 with `body` (Structs, dicts, lists) as JSON."""
    return Response(msgspec.json.encode(body), media_type="application/json")
