"""Extraction of a custom tool's input text from the JSON around it.

Owns: `CustomInput`. Never does: know where the JSON came from. Called by: `core_formats.answers.sink`.
"""

from __future__ import annotations

from core_formats.answers.reader import Reader, Reading, Sink
from core_formats.calls.json_text import string_text


class CustomInput:
    """Takes `{"input": "..."}` in pieces and emits the string; anything else is passed through."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._reader = Reader()
        self._reading = self._run()

    def put(self, text: str) -> None:
        """Add a piece of the JSON."""
        self._reader.give(text)
        next(self._reading, None)

    def end(self) -> None:
        """End the input."""
        self._reader.ended = True
        next(self._reading, None)

    def _run(self) -> Reading[None]:
        reader = self._reader
        reader.mark = reader.at
        if (yield from self._key()) and (yield from reader.skip()) == '"':
            reader.mark = None
            yield from string_text(reader, self._sink)
            while (yield from reader.peek()):
                reader.at = len(reader.text)
            return
        reader.at = reader.mark
        reader.mark = None
        while (yield from reader.peek()):
            rest = reader.text[reader.at :]
            reader.at = len(reader.text)
            self._sink(rest)

    def _key(self) -> Reading[bool]:
        """Read up to the first value of an object."""
        reader = self._reader
        if (yield from reader.skip()) != "{":
            return False
        reader.at += 1
        if (yield from reader.skip()) != '"':
            return False
        yield from string_text(reader, lambda text: None)
        if (yield from reader.skip()) != ":":
            return False
        reader.at += 1
        return True
