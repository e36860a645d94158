"""A kind of request body as data: how it is decoded and prepared, and what comes out.

Owns: `BodyKind`, the row. Never does: prepare, or import what serves HTTP: rows are read in the helper process, too.
Called by: the modules that declare rows, `core_apis.preparation` (runs them), the preparer (chooses where).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec

from core_apis.protocol.decoding import decode_body

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyKind:
    """One row.

    name:    as exchanges, and the journal, name it.
    decode:  from bytes to what `prepare` takes. Raises RequestError.
    prepare: takes the `core_apis.preparation.Preparation` and what was decoded; the steps up to what the engine, or the
        answer, needs. Raises RequestError.
    result:  the type of that; a Struct, which crosses processes.
    renders: it may render a template, whose cost no size tells: never on the event loop.
    pairs:   its texts may be read in pairs: one of them is then tokenized once for each other one.
    """

    name: str
    decode: Callable[[Buffer], Any]
    prepare: Callable[[Any, Any], msgspec.Struct]
    result: type[msgspec.Struct]
    renders: bool = False
    pairs: bool = False


def json_of(form: type[T]) -> Callable[[Buffer], T]:
    """Decodes JSON of one form, with errors that name the field."""
    return partial(decode_body, msgspec.json.Decoder(form))
