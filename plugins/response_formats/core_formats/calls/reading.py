"""Parsing of a call's body by its kind.

Owns: `CallReading`, which the readers of bodies share, and the choice among them. Never does: look for the marker
before a call. Called by: `core_formats.answers.parser`.

Until a call's name is known nothing of it is emitted, and `Reader.mark` stays set: if a body reader returns then,
everything since the mark is text. It returns whether it has also read the marker that closes the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from core_formats.answers.reader import Reader, Reading
from core_formats.answers.sink import AnswerSink
from core_formats.markers import FormMarkers
from core_formats.tool_spec import ToolSpec

MAX_NAME = 256
MAX_HEADER = 1024
_NOT_IN_NAMES = frozenset(" \t\r\n<>\"'{}()[],=|\ud800\ud801")


@dataclass(frozen=True, slots=True)
class CallReading:
    """The context of a body reader.

    markers: of the form.
    stops: further markers, which invalidate a header that contains them.
    cut: whether the answer was cut off at the end of its text; called only there.
    """

    reader: Reader
    sink: AnswerSink
    markers: FormMarkers
    tools: Mapping[str, ToolSpec]
    stops: tuple[str, ...]
    cut: Callable[[], bool]

    def may_start(self, name: str) -> bool:
        """Whether a call may have this name: any name after a marker for calls, otherwise only a tool's."""
        if not name or len(name) > MAX_NAME:
            return False
        certain = bool(self.markers.open) and not self.markers.form.known_only
        return certain or name in self.tools

    def start(self, name: str, call_id: str = "") -> None:
        """Start a call; what was read of it is no longer text."""
        self.reader.mark = None
        self.sink.start_call(name, call_id)

    def keep(self) -> None:
        """Set the mark, because the following input may turn out to be text."""
        if self.reader.mark is None:
            self.reader.mark = self.reader.at

    def name(self) -> Reading[str]:
        """Read a name; empty when there is none or it is too long."""
        reader = self.reader
        length = 0
        while length <= MAX_NAME:
            if reader.at + length >= len(reader.text):
                if (yield from reader.more()):
                    continue
                break
            if reader.text[reader.at + length] in _NOT_IN_NAMES:
                break
            length += 1
        name = reader.text[reader.at : reader.at + length]
        reader.at += length
        return name if length <= MAX_NAME else ""


def is_name(text: str) -> bool:
    """Whether the text is a valid tool name."""
    return 0 < len(text) <= MAX_NAME and _NOT_IN_NAMES.isdisjoint(text)
