"""Reader of calls whose arguments are key-value pairs between markers.

Owns: the parsing. Never does: look for the marker before a call. Called by: `core_formats.answers.parser`.

The arguments are emitted as JSON with the types of the tool's schema. A value that can only be a string is emitted as
it arrives, others when they are complete.
"""

from __future__ import annotations

import json

from core_formats.answers.reader import Reading, Sink, literals, with_token_texts
from core_formats.calls.reading import MAX_NAME, CallReading, is_name
from core_formats.calls.value_types import argument_types, typed_json


def read_pairs_call(reading: CallReading) -> Reading[bool]:
    """Read a name and the pairs after it, up to the marker that closes the call."""
    reader = reading.reader
    markers = reading.markers
    yield from reader.skip()
    if markers.name_open and not (yield from reader.take(literals(markers.name_open))):
        return False
    name = yield from reading.name()
    if not is_name(name) or not (yield from _begins(reading)) or not reading.may_start(name):
        return False
    reading.start(name)
    return (yield from _pairs(reading))


def _begins(reading: CallReading) -> Reading[bool]:
    """Whether the text after a name is valid there."""
    reader = reading.reader
    markers = reading.markers
    following = yield from reader.skip()
    if markers.args_open:
        return bool((yield from reader.take(literals(*markers.args_open))))
    found = yield from reader.take(literals(markers.key_open, *markers.closes))
    reader.at -= len(found)
    return bool(found) or not following


def _pairs(reading: CallReading) -> Reading[bool]:
    reader = reading.reader
    sink = reading.sink
    markers = reading.markers
    others = tuple(text for text in reading.stops if text not in markers.closes and text != markers.key_open)
    stops = literals(markers.key_open, *markers.closes, *others)
    opening = "{"
    while True:
        marker = yield from reader.until(stops, lambda text: None)
        if marker != markers.key_open:
            break
        if not (yield from _pair(reading, opening)):
            sink.end_call(complete=False)
            return False
        opening = ", "
    whole = bool(marker) or not reading.cut()
    if whole:
        sink.arguments("{}" if opening == "{" else "}")
    sink.end_call(whole)
    if marker in markers.closes:
        return True
    reader.at -= len(marker)
    return False


def _pair(reading: CallReading, opening: str) -> Reading[bool]:
    """Read one pair. False: the text ended."""
    reader = reading.reader
    sink = reading.sink
    markers = reading.markers
    pieces: list[str] = []
    ending = yield from reader.until(markers.after_key, pieces.append, MAX_NAME)
    if not ending:
        return False
    key = with_token_texts("".join(pieces)).strip().strip("\"'")
    if markers.value_open.any is not None:
        yield from reader.skip()
        yield from reader.take(markers.value_open)
    types = argument_types(sink.open_call, key)
    kind = markers.after_keys[ending]
    before = f"{opening}{json.dumps(key, ensure_ascii=False)}: "
    if kind == "string" or (kind == "schema" and types == ("string",)):
        sink.arguments(before + '"')
        trimmed = Trimmed(markers.form.trim, lambda text: sink.arguments(_escaped(with_token_texts(text))))
        marker = yield from reader.until(markers.value_close, trimmed.put)
        if marker:
            sink.arguments('"')
        return bool(marker)
    value: list[str] = []
    trimmed = Trimmed(markers.form.trim, value.append)
    marker = yield from reader.until(markers.value_close, trimmed.put)
    if marker:
        sink.arguments(before + typed_json(with_token_texts("".join(value)), types))
    return bool(marker)


class Trimmed:
    """Removes up to one character of white space at the beginning, and one at the end."""

    __slots__ = ("_begun", "_characters", "_held", "_sink")

    def __init__(self, characters: str, sink: Sink) -> None:
        self._characters = characters
        self._sink = sink
        self._begun = False
        self._held = ""

    def put(self, text: str) -> None:
        """Add text; a last character that may be removed stays pending."""
        if not self._begun:
            self._begun = True
            if text[0] in self._characters:
                text = text[1:]
        text = self._held + text
        self._held = ""
        if text and text[-1] in self._characters:
            self._held = text[-1]
            text = text[:-1]
        if text:
            self._sink(text)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
