"""Reader of calls whose arguments are JSON with unquoted keys and other string delimiters.

Owns: the parsing. Never does: look for the marker before a call. Called by: `core_formats.answers.parser`.

The arguments are emitted as JSON; strings as they arrive.
"""

from __future__ import annotations

import json

from core_formats.answers.reader import Literals, Reader, Reading, Sink, literals, with_token_texts
from core_formats.calls.json_text import raw_value
from core_formats.calls.reading import CallReading, is_name
from core_formats.calls.value_types import argument_types, no_string, typed_json
from core_formats.tool_spec import ToolSpec

MAX_DEPTH = 64
_KEY_ENDS = literals(":", "}", "]")
_SCALAR_ENDS = literals(",", "}", "]")


def read_loose_call(reading: CallReading) -> Reading[bool]:
    """Read a name and the object after it."""
    reader = reading.reader
    yield from reader.skip()
    name_open = reading.markers.name_open
    if name_open and not (yield from reader.take(literals(name_open))):
        return False
    name = yield from reading.name()
    if not is_name(name) or (yield from reader.skip()) != "{" or not reading.may_start(name):
        return False
    reading.start(name)
    body = _Loose(reader, literals(reading.markers.string_delimiter), reading.sink.arguments, reading.sink.open_call)
    reading.sink.end_call((yield from body.value(0)))
    return False


class _Loose:
    """Reads values. Each method returns False when the text ended, or was invalid."""

    def __init__(self, reader: Reader, delimiter: Literals, sink: Sink, tool: ToolSpec | None) -> None:
        self._reader = reader
        self._tool = tool
        self._delimiter = delimiter
        self._sink = sink

    def value(self, depth: int, types: tuple[str, ...] = ()) -> Reading[bool]:
        """Read a value. types: allowed by the schema, empty when it does not say."""
        reader = self._reader
        first = yield from reader.skip()
        if depth > MAX_DEPTH:
            return False
        if first == "{":
            return (yield from self._object(depth))
        if first == "[":
            return (yield from self._array(depth))
        if first == '"':
            return (yield from raw_value(reader, self._sink))
        if (yield from reader.take(self._delimiter)):
            if no_string(types):
                return (yield from self._typed(types))
            self._sink('"')
            ended = yield from reader.until(self._delimiter, self._string)
            if ended:
                self._sink('"')
            return bool(ended)
        pieces: list[str] = []
        ended = yield from reader.until(_SCALAR_ENDS, pieces.append)
        if not ended:
            return False
        reader.at -= len(ended)
        self._sink(typed_json(with_token_texts("".join(pieces)).strip().strip('"'), ()))
        return True

    def _object(self, depth: int) -> Reading[bool]:
        reader = self._reader
        reader.at += 1
        opening = "{"
        while True:
            following = yield from reader.skip(" \t\r\n,")
            if following == "}":
                reader.at += 1
                self._sink("{}" if opening == "{" else "}")
                return True
            pieces: list[str] = []
            if (yield from reader.until(_KEY_ENDS, pieces.append)) != ":":
                return False
            key = with_token_texts("".join(pieces)).strip().strip('"')
            for delimiter in self._delimiter.texts:
                key = key.removeprefix(with_token_texts(delimiter)).removesuffix(with_token_texts(delimiter))
            self._sink(f"{opening}{json.dumps(key, ensure_ascii=False)}: ")
            opening = ", "
            types = argument_types(self._tool, key) if depth == 0 else ()
            if not (yield from self.value(depth + 1, types)):
                return False

    def _typed(self, types: tuple[str, ...]) -> Reading[bool]:
        """Read the rest of a non-string value between string delimiters."""
        pieces: list[str] = []
        ended = yield from self._reader.until(self._delimiter, pieces.append)
        if ended:
            self._sink(typed_json(with_token_texts("".join(pieces)), types))
        return bool(ended)

    def _array(self, depth: int) -> Reading[bool]:
        reader = self._reader
        reader.at += 1
        opening = "["
        while True:
            following = yield from reader.skip(" \t\r\n,")
            if following == "]":
                reader.at += 1
                self._sink("[]" if opening == "[" else "]")
                return True
            if not following or following == "}":
                return False
            self._sink(opening)
            opening = ", "
            if not (yield from self.value(depth + 1)):
                return False

    def _string(self, text: str) -> None:
        self._sink(json.dumps(with_token_texts(text), ensure_ascii=False)[1:-1])
