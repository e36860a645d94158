"""One line of a batch file: its form, and the requests it may contain.

Owns: both, and the errors for lines that cannot be run. Never does: read a file, or check bodies (the server does).
Called by: the batch file.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from core.api.errors import UserError, nearest

SERVED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "/v1/chat/completions": ("stream",),
        "/v1/completions": ("stream",),
        "/v1/responses": ("stream", "background"),
        "/v1/embeddings": (),
        "/pooling": (),
        "/classify": (),
        "/v1/classify": (),
        "/score": (),
        "/v1/score": (),
        "/rerank": (),
        "/v1/rerank": (),
        "/v2/rerank": (),
        "/v1/embed": (),
        "/v2/embed": (),
    }
)
"""Request paths, each with the body fields that must not be true: a batch has one complete answer per line."""

BINARY = ("bytes", "bytes_only")
"""Values of `encoding_format` whose answers are not JSON."""

LATER = (
    "/v1/pooling",
    "/v1/moderations",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/images/generations",
)
"""Paths allowed in other batch formats, which are rejected by name."""

LONGEST_ID = 1024
"""Limit on an id's length in characters."""


class Line(msgspec.Struct):
    """One request, as it is written in the file."""

    custom_id: str
    url: str
    body: msgspec.Raw
    method: str = "POST"


class LineError(UserError):
    """Raised for a line that cannot be run. code: a short identifier. custom_id: if it could be read."""

    def __init__(self, message: str, code: str = "invalid_line", custom_id: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.custom_id = custom_id


def parsed(text: bytes, number: int) -> Line:
    """Parse one line. Raises LineError."""
    try:
        values = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LineError(f"Line {number} is no JSON: {error}.", "invalid_json") from None
    if not isinstance(values, dict):
        raise LineError(f"Line {number} is no JSON object; expected custom_id, method, url and body.", "invalid_json")
    custom_id = values.get("custom_id")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= LONGEST_ID:
        raise LineError(
            f"Line {number}: custom_id is {shown(custom_id)}; expected a text of 1 to {LONGEST_ID} characters.",
            "invalid_custom_id",
        )
    try:
        _check(values)
    except LineError as error:
        raise LineError(f"Line {number}: {error}", error.code, custom_id) from None
    return msgspec.json.decode(text, type=Line)


def _check(values: dict[str, Any]) -> None:
    """Raise LineError for any problem except one of the id."""
    unknown = set(values) - set(Line.__struct_fields__)
    if unknown:
        name = min(unknown)
        raise LineError(f"{shown(name)} is unknown here.{nearest(name, Line.__struct_fields__)} Leave it out.")
    method = values.get("method", "POST")
    if method != "POST":
        raise LineError(f"method is {shown(method)}; expected 'POST'.", "invalid_method")
    url = values.get("url")
    if not isinstance(url, str) or url not in SERVED:
        raise LineError(_wrong_url(url), "invalid_url")
    body = values.get("body")
    if not isinstance(body, dict):
        raise LineError(f"body is {shown(body)}; expected the JSON object of a request.", "invalid_body")
    if body.get("encoding_format") in BINARY:
        raise LineError(
            f"encoding_format is {shown(body['encoding_format'])}, but a line holds JSON; expected float or base64.",
            "invalid_body",
        )
    for name in SERVED[url]:
        if body.get(name):
            raise LineError(f"{name} is true, but a batch has one whole answer a line; leave it out.", "invalid_body")


def _wrong_url(url: object) -> str:
    served = ", ".join(SERVED)
    if url in LATER:
        return f"url is '{url}', which batches do not serve; served are {served}."
    return f"url is {shown(url)}; expected one of {served}.{nearest(str(url), SERVED)}"


def shown(value: object) -> str:
    """Format a value for an error message, no longer than one line."""
    text = "missing" if value is None else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
