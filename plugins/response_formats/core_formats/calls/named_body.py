"""Reader of calls with the name before JSON arguments.

Owns: the parsing. Never does: look for the marker before a call. Called by: `core_formats.answers.parser`.
"""

from __future__ import annotations

from core_formats.answers.reader import Reading, literals, with_token_texts
from core_formats.calls.json_text import raw_value, string_text
from core_formats.calls.reading import MAX_HEADER, CallReading, is_name


def read_named_call(reading: CallReading) -> Reading[bool]:
    """Read a header with the name, and the arguments up to their end."""
    reader = reading.reader
    header: list[str] = []
    opens = reading.markers.args_open
    marker = yield from reader.until(literals(*opens, *reading.stops), header.append, MAX_HEADER)
    if marker not in opens:
        reader.at -= len(marker)
        return False
    if marker == "{":
        reader.at -= 1
    found = reading.markers.header.fullmatch(with_token_texts("".join(header)).strip())
    name = found.group("name").strip() if found else ""
    if found is None or not is_name(name) or not reading.may_start(name):
        return False
    reading.start(name, found.groupdict().get("id") or "")
    return (yield from _arguments(reading))


def _arguments(reading: CallReading) -> Reading[bool]:
    reader = reading.reader
    sink = reading.sink
    if not sink.is_custom:
        yield from reader.skip()
    first = yield from reader.peek()
    if first == "{" or (first == '"' and not sink.is_custom):
        read = raw_value if first == "{" else string_text
        sink.end_call((yield from read(reader, sink.arguments)))
        yield from reader.skip()
        yield from reader.take(reading.markers.args_close)
        return False
    return (yield from _plain(reading))


def _plain(reading: CallReading) -> Reading[bool]:
    """Read arguments that are not an object: a custom tool's input, or nothing."""
    sink = reading.sink
    pieces: list[str] = []
    give = sink.arguments if sink.is_custom else pieces.append
    marker = yield from reading.reader.until(reading.markers.close, give)
    if not sink.is_custom:
        sink.arguments("".join(pieces).strip() or "{}")
    sink.end_call(bool(marker) or not reading.cut())
    return bool(marker)
