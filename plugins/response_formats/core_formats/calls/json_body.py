"""Reader of calls written as JSON objects with a name and arguments, one or a list of them.

Owns: the parsing. Never does: look for the marker before a call. Called by: `core_formats.answers.parser`.

The arguments are emitted as the model wrote them.
"""

from __future__ import annotations

from dataclasses import dataclass

from core_formats.answers.reader import Reading, Sink, literals
from core_formats.calls.json_text import raw_value, rest_of_object, skip_separators, string_text
from core_formats.calls.reading import MAX_NAME, CallReading

MAX_BEFORE_NAME = 1 << 20  # characters of arguments allowed before their name
FENCES = literals("```json", "```")
_BARE_KEYS = frozenset(("type", "id", "tool_call_id"))  # keys allowed in a call without markers, besides its own


@dataclass(slots=True)
class _Call:
    """The state of the call being read.

    early: arguments found before the name, or None.
    started: the name was emitted.
    ended: the arguments were emitted.
    """

    name: str = ""
    identifier: str = ""
    early: list[str] | None = None
    started: bool = False
    ended: bool = False


def read_json_calls(reading: CallReading) -> Reading[bool]:
    """Read an object or a list of objects."""
    reader = reading.reader
    if reading.markers.form.fence:
        yield from reader.skip()
        yield from reader.take(FENCES)
    in_list = (yield from reader.skip()) == "["
    if in_list:
        reader.at += 1
    while (yield from skip_separators(reader)) == "{":
        reading.keep()
        call = _Call()
        reader.at += 1
        yield from _members(reading, call, nested=False)
        if not call.started:
            return False
    if reader.mark is None and in_list and (yield from reader.peek()) == "]":
        reader.at += 1
    return False


def _members(reading: CallReading, call: _Call, nested: bool) -> Reading[bool]:
    """Read the members of an object up to its end. False: it is not a call, or the text ended."""
    reader = reading.reader
    while True:
        following = yield from reader.skip(" \t\r\n,")
        if following == "}":
            reader.at += 1
            return nested or _finish(reading, call)
        if following != '"':
            return _give_up(reading, call)
        key: list[str] = []
        if not (yield from string_text(reader, key.append)):
            return _give_up(reading, call)
        if (yield from reader.skip()) != ":":
            return _give_up(reading, call)
        reader.at += 1
        yield from reader.skip()
        if not (yield from _member(reading, call, "".join(key))):
            return _give_up(reading, call)
        if call.ended:
            yield from rest_of_object(reader)
            return True


def _member(reading: CallReading, call: _Call, key: str) -> Reading[bool]:
    """Read one value. False: the text ended, or this is not a call."""
    reader = reading.reader
    form = reading.markers.form
    first = yield from reader.peek()
    if form.name_is_key:
        return (yield from _named_by_key(reading, call, key))
    if key in (form.name_key, *form.also_name):
        return (yield from _name(reading, call, first))
    if key in (form.args_key, *form.also_args):
        return (yield from _arguments(reading, call, first))
    if key == "function" and first == "{":
        reader.at += 1
        return (yield from _members(reading, call, nested=True))
    if not reading.markers.open and key not in _BARE_KEYS:
        return False
    value: list[str] = []
    if not (yield from raw_value(reader, value.append)):
        return False
    if key == form.id_key and not call.started:
        call.identifier = "".join(value).strip('"')
    return sum(map(len, value)) <= MAX_BEFORE_NAME


def _named_by_key(reading: CallReading, call: _Call, key: str) -> Reading[bool]:
    if len(key) > MAX_NAME or not reading.may_start(key):
        return False
    call.name = key
    return (yield from _arguments(reading, call, "{"))


def _name(reading: CallReading, call: _Call, first: str) -> Reading[bool]:
    if first != '"' or call.name:
        return False
    pieces: list[str] = []
    if not (yield from string_text(reading.reader, pieces.append)):
        return False
    name = "".join(pieces)
    if len(name) > MAX_NAME or not reading.may_start(name):
        return False
    call.name = name
    if call.early is not None:
        _start(reading, call)
        reading.sink.arguments("".join(call.early))
        _end(reading, call)
    return True


def _start(reading: CallReading, call: _Call) -> None:
    call.started = True
    reading.start(call.name, call.identifier)


def _arguments(reading: CallReading, call: _Call, first: str) -> Reading[bool]:
    if not call.name:
        call.early = []
        whole = yield from _value(reading, first, call.early.append)
        return whole and sum(map(len, call.early)) <= MAX_BEFORE_NAME
    _start(reading, call)
    if not (yield from _value(reading, first, reading.sink.arguments)):
        return False
    _end(reading, call)
    return True


def _value(reading: CallReading, first: str, sink: Sink) -> Reading[bool]:
    """Read arguments: an object unchanged, a string containing one without its quotes, null as no arguments."""
    reader = reading.reader
    if first == "{":
        return (yield from raw_value(reader, sink))
    pieces: list[str] = []
    if first == '"':
        whole = yield from string_text(reader, pieces.append)
    else:
        whole = yield from raw_value(reader, pieces.append)
    if whole:
        text = "".join(pieces)
        sink("{}" if text.strip() in ("", "null", "None") else text)
    return whole


def _end(reading: CallReading, call: _Call) -> None:
    call.ended = True
    reading.sink.end_call()


def _finish(reading: CallReading, call: _Call) -> bool:
    """Handle the end of an object; one with only a name is a call without arguments."""
    if not call.name:
        return False
    if not call.started:
        _start(reading, call)
        reading.sink.arguments("{}")
        _end(reading, call)
    return True


def _give_up(reading: CallReading, call: _Call) -> bool:
    """Handle an object that is not a call, or the end of the text inside one."""
    reader = reading.reader
    cut = reader.ended and reader.at >= len(reader.text)
    if cut and call.name and not call.started and reading.markers.open:
        _start(reading, call)
    if call.started and not call.ended:
        call.ended = True
        reading.sink.end_call(complete=False)
    return False
