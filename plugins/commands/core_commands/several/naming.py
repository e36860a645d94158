"""Which model a request is for.

Owns: the search for its name, in the path, the query, a header or the body, and `keep_alive`. Never does: check whether
there is such a model. Called by: `core_commands.several.application`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import Request

from core.api.errors import RequestError
from core_apis.forms import TYPE, FormReader

HEADER = "x-model"
PARAMETER = "model"
KEEP_ALIVE = "keep_alive"
SHORT_BODY = 256 * 1024
"""Bytes of a body that is searched on the event loop; longer ones, such as sounds in forms, are searched in a thread."""
OBJECT = re.compile(rb"\s*\{")
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class _Named(msgspec.Struct):
    """The fields of a body that are read here. All others are passed over."""

    model: Any = None
    keep_alive: Any = None
    messages: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")

    @property
    def is_work(self) -> bool:
        """Whether the body is one that a model computes."""
        return any((self.model is not None, bytes(self.messages), bytes(self.prompt), bytes(self.input)))


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for. name: None: it names no model. keep_alive: seconds, None: not said. body: to be sent on.

    is_work: whether the body is one that a model computes.
    """

    name: str | None
    keep_alive: float | None
    body: bytes
    is_work: bool = False


async def asked(request: Request, pieces: Sequence[bytearray]) -> Asked:
    """Return what a request asks for. Raises RequestError for a name or a `keep_alive` that is none."""
    given = request.headers.get(HEADER) or request.query_params.get(PARAMETER)
    content_type = request.headers.get("content-type", "")
    if sum(map(len, pieces)) > SHORT_BODY:
        return await asyncio.to_thread(_read, pieces, content_type, given)
    return _read(pieces, content_type, given)


def seconds_of(given: Any) -> float | None:
    """Read `keep_alive`: seconds, or a text such as "5m"; below 0: without end. Raises RequestError."""
    if given is None:
        return None
    if isinstance(given, int | float) and not isinstance(given, bool):
        return float(given)
    if isinstance(given, str):
        text = given.strip()
        for unit in ("ms", "s", "m", "h", ""):
            number = text.removesuffix(unit) if unit else text
            if not text.endswith(unit):
                continue
            try:
                return float(number) * UNITS.get(unit, 1.0)
            except ValueError:
                continue
    raise RequestError(
        f'`keep_alive` is {str(given)[:100]!r}; expected seconds, or a text such as "5m"; below 0: without end.',
        param=KEEP_ALIVE,
    )


def _read(pieces: Sequence[bytearray], content_type: str, given: str | None) -> Asked:
    """Search a whole body. given: the name that its query or its header says."""
    body = b"".join(pieces)
    if content_type.partition(";")[0].strip().lower() == TYPE:
        named = _of_form(pieces, content_type)
        return Asked(given or named, None, body, named is not None)
    return _of_json(body, given) if OBJECT.match(body) else Asked(given, None, body)


def _of_json(body: bytes, given: str | None) -> Asked:
    """Read a JSON body. One that is none is left to the model's server, which says what is wrong."""
    try:
        found = msgspec.json.decode(body, type=_Named)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Asked(given, None, body)
    if found.model is not None and not isinstance(found.model, str):
        raise RequestError(f"`model` is {str(found.model)[:100]!r}; expected a text.", param="model")
    if found.keep_alive is None:
        return Asked(given or found.model, None, body, found.is_work)
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    fields.pop(KEEP_ALIVE)
    return Asked(given or found.model, seconds_of(found.keep_alive), msgspec.json.encode(fields), found.is_work)


def _of_form(pieces: Sequence[bytearray], content_type: str) -> str | None:
    """Return the field `model` of a form."""
    reader = FormReader(content_type)
    for piece in pieces:
        reader.write(piece)
    return reader.end().one("model") or None
