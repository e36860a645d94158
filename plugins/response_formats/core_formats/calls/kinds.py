"""Dispatch on the kind of a call's body.

Owns: the reader of each kind, and the choice among several forms. Never does: read. Called by: the parser.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from core_formats.answers.reader import SPACE, Reader, Reading
from core_formats.calls.json_body import read_json_calls
from core_formats.calls.loose_body import read_loose_call
from core_formats.calls.named_body import read_named_call
from core_formats.calls.pairs_body import read_pairs_call
from core_formats.calls.python_body import read_python_calls
from core_formats.calls.reading import CallReading
from core_formats.markers import FormMarkers
from core_formats.response_format import BodyKind

READERS: Mapping[BodyKind, Callable[[CallReading], Reading[bool]]] = MappingProxyType(
    {
        "json": read_json_calls,
        "named_json": read_named_call,
        "pairs": read_pairs_call,
        "pythonic": read_python_calls,
        "loose": read_loose_call,
    }
)


def chosen(forms: tuple[FormMarkers, ...], reader: Reader) -> Reading[FormMarkers | None]:
    """Return the form of the following text, or None if it has none of them. Only white space is consumed."""
    if len(forms) == 1 and forms[0].open:
        return forms[0]
    first = yield from reader.skip()
    second = (yield from _second(reader)) if first == "[" else ""
    for form in forms:
        if _fits(form, first, second):
            return form
    return None


def _second(reader: Reader) -> Reading[str]:
    """Return the first character after the next one that is not white space."""
    offset = 1
    while True:
        if reader.at + offset >= len(reader.text):
            if not (yield from reader.more()):
                return ""
        elif reader.text[reader.at + offset] in SPACE:
            offset += 1
        else:
            return reader.text[reader.at + offset]


def _fits(form: FormMarkers, first: str, second: str) -> bool:
    """Whether a body of this form may begin with these characters. second: the one inside the start of a list."""
    start = second if first == "[" else first
    match form.form.kind:
        case "json":
            return start == "{" or (form.form.fence and first == "`")
        case "pythonic":
            named = start.isalpha() or start == "_"
            return named and (first == "[" or bool(form.open))
        case _:
            return bool(first) and first not in "{[`"
