"""Kinds of request bodies as data: how each is decoded and prepared, and what the result is.

Owns: `BodyKind`, the row. Never does: prepare, or import HTTP modules: rows are read in the helper process, too. Called
by: the modules that declare rows, `core_apis.prepare.preparation` (runs them), the preparer (chooses where).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec

from core.api.errors import UNREADABLE
from core_apis.protocol.decoding import decode_body

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyKind:
    """One row: a kind of request body.

    name:    the name that exchanges and the journal use.
    decode:  converts bytes into the argument of `prepare`. Raises RequestError.
    prepare: takes the `core_apis.prepare.preparation.Preparation` and the decoded body, and runs the steps up to what the
        engine, or the answer, needs. Raises RequestError.
    result:  the type that `prepare` returns; a Struct, which can be sent between processes.
    renders: whether it may render a template. The cost of that does not follow from the size, so it never runs on the
        event loop.
    peek:    tells it of the bytes of one body, for a kind of which few do; None: `renders` says it.
    pairs:   whether its texts may be read in pairs: one text is then tokenized once per partner.
    before:  number of pieces of its bytes that come before the body itself.
    """

    name: str
    decode: Callable[[Buffer], Any]
    prepare: Callable[[Any, Any], msgspec.Struct]
    result: type[msgspec.Struct]
    renders: bool = False
    peek: Callable[[bytes], bool] | None = None
    pairs: bool = False
    before: int = 0

    def may_render(self, pieces: Sequence[Buffer], most: int) -> bool:
        """Whether a body may render a template. most: bytes of the largest body that is looked at; a larger one may."""
        if self.peek is None:
            return self.renders
        return sum(map(len, pieces)) > most or self.peek(b"".join(pieces))


def json_of(form: type[T]) -> Callable[[Buffer], T]:
    """Return a JSON decoder for one form, whose errors name the field."""
    return partial(decode_body, msgspec.json.Decoder(form))


class NamedModel(msgspec.Struct):
    """The part of a body that names its model."""

    model: str | None = None


def _named_model(data: Buffer) -> NamedModel:
    """Return the model that a body names. One without such a field names none: its preparation refuses it, if need be."""
    try:
        return msgspec.json.decode(data, type=NamedModel)
    except UNREADABLE:
        return NamedModel()


MODEL_NAME = BodyKind(
    name="model name", decode=_named_model, prepare=lambda preparation, named: named, result=NamedModel
)
"""The name of the model alone, of a body of any kind."""
