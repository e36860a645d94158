"""Logs of request bodies: JSON lines, each a body or a line of a batch file.

Owns: reading them, and the kind of each body. Never does: prepare a body. Called by: `core kv audit`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from core.api.errors import UNREADABLE, UserError

KINDS = {"/v1/chat/completions": "chat", "/v1/messages": "messages"}
"""The kind of body by path."""


class Logged(NamedTuple):
    """A logged request. line: its number in the file, from 1. path: of the API. body: its fields."""

    line: int
    path: str
    body: dict[str, Any]

    @property
    def kind(self) -> str:
        """Return the kind of the body."""
        return KINDS[self.path]


def read_log(name: str) -> Iterator[Logged]:
    """Yield the requests of a log. Raises UserError for a file that cannot be read, and for a line that is no chat."""
    try:
        data = Path(name).expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"{name}: {error.strerror or error}; expected a file with a request body a line.") from None
    for number, line in enumerate(data.splitlines(), 1):
        if line.strip():
            yield _logged(name, number, line)


def _logged(name: str, number: int, line: bytes) -> Logged:
    where = f"{name}, line {number}"
    try:
        body = msgspec.json.decode(line)
    except UNREADABLE as error:
        raise UserError(f"{where}: this is no JSON ({error}); expected a request body a line.") from None
    path = "/v1/chat/completions"
    if isinstance(body, dict) and isinstance(body.get("body"), dict):
        path = str(body.get("url", path))
        body = body["body"]
    if path not in KINDS or not isinstance(body, dict) or "messages" not in body:
        raise UserError(f"{where}: expected the body of a chat, or a line with url ({', '.join(KINDS)}) and body.")
    return Logged(number, path, body)
