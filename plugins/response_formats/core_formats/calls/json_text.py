"""Incremental reading of JSON, without building values.

Owns: the end of a value, the text of a string. Never does: validate a value's content. Called by: the readers of
bodies.
"""

from __future__ import annotations

import json
import re

from core_formats.answers.reader import SPACE, Reader, Reading, Sink

_STRING_STOP = re.compile(r'["\\]')
_NESTED_STOP = re.compile(r'["{}\[\]]')
_SCALAR_STOP = re.compile(r"[,}\]\s\ud800]")
_OPENING = "{["
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def string_text(reader: Reader, sink: Sink) -> Reading[bool]:
    """Read a string that begins here, and emit its text. False: the text ended first."""
    reader.at += 1
    while True:
        found = _STRING_STOP.search(reader.text, reader.at)
        end = len(reader.text) if found is None else found.start()
        if end > reader.at:
            sink(reader.text[reader.at : end])
            reader.at = end
        if found is None:
            if not (yield from reader.more()):
                return False
            continue
        if found.group() == '"':
            reader.at += 1
            return True
        escaped = yield from _escape(reader)
        if escaped is None:
            return False
        sink(escaped)


def _escape(reader: Reader) -> Reading[str | None]:
    """Read an escape that begins here, or two that form a surrogate pair. None: the text ended."""
    if not (yield from _has(reader, 2)):
        return None
    letter = reader.text[reader.at + 1]
    if letter != "u":
        reader.at += 2
        return _ESCAPES.get(letter, letter)
    if not (yield from _has(reader, 6)):
        return None
    raw = reader.text[reader.at : reader.at + 6]
    reader.at += 6
    if raw[2:4].lower() in ("d8", "d9", "da", "db") and (yield from _has(reader, 6)):
        second = reader.text[reader.at : reader.at + 6]
        if second[:3].lower() in ("\\ud",) and second[3].lower() in "cdef":
            reader.at += 6
            raw += second
    try:
        return str(json.loads(f'"{raw}"')).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    except ValueError:
        return raw


def _has(reader: Reader, count: int) -> Reading[bool]:
    while len(reader.text) - reader.at < count:
        if not (yield from reader.more()):
            return False
    return True


def raw_value(reader: Reader, sink: Sink) -> Reading[bool]:
    """Read a value that begins here, and emit its source. False: the text ended first."""
    first = yield from reader.peek()
    if first in _OPENING and first:
        return (yield from _nested(reader, sink, 0))
    if first == '"':
        return (yield from _raw_string(reader, sink))
    while True:
        found = _SCALAR_STOP.search(reader.text, reader.at)
        _give(reader, len(reader.text) if found is None else found.start(), sink)
        if found is not None:
            return True
        if not (yield from reader.more()):
            return False


def rest_of_object(reader: Reader) -> Reading[bool]:
    """Read to the end of the object that the reader is in."""
    return (yield from _nested(reader, lambda text: None, 1))


def _nested(reader: Reader, sink: Sink, depth: int) -> Reading[bool]:
    while True:
        found = _NESTED_STOP.search(reader.text, reader.at)
        if found is None:
            _give(reader, len(reader.text), sink)
            if not (yield from reader.more()):
                return False
            continue
        character = found.group()
        if character == '"':
            _give(reader, found.start(), sink)
            if not (yield from _raw_string(reader, sink)):
                return False
            continue
        _give(reader, found.end(), sink)
        depth += 1 if character in _OPENING else -1
        if depth == 0:
            return True


def _raw_string(reader: Reader, sink: Sink) -> Reading[bool]:
    start = 1  # after the quote
    while True:
        found = _STRING_STOP.search(reader.text, reader.at + start)
        if found is not None and found.group() == '"':
            _give(reader, found.end(), sink)
            return True
        if found is not None and found.end() < len(reader.text):
            _give(reader, found.end() + 1, sink)
            start = 0
            continue
        end = len(reader.text) if found is None else found.start()
        if end >= reader.at + start:
            _give(reader, end, sink)
            start = 0
        if not (yield from reader.more()):
            _give(reader, len(reader.text), sink)
            return False


def _give(reader: Reader, end: int, sink: Sink) -> None:
    if end > reader.at:
        sink(reader.text[reader.at : end])
        reader.at = end


def skip_separators(reader: Reader) -> Reading[str]:
    """Skip the separators between two objects; returns the next character."""
    return (yield from reader.skip(SPACE + ",;"))
