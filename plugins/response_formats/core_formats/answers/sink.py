"""Assembly of events from pieces of text, reasoning and calls.

Owns: white space around markers, the handling of special tokens, the numbers of calls. Never does: look for markers.
Called by: `core_formats.answers.parser` and the readers of bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby

from core_formats.answers.events import AnswerEvent, ArgumentsDelta, CallEnd, CallStart, ReasoningDelta, TextDelta
from core_formats.answers.reader import SPACE, with_token_texts, without_tokens
from core_formats.calls.custom_input import CustomInput
from core_formats.tool_spec import ToolSpec

MAX_SPACE = 256  # characters of white space kept pending before a possible marker; earlier ones are released


class Passage:
    """Text of one kind between two markers. White space at its ends is dropped, but kept between parts.

    emitted: whether anything of it came out since the last marker.
    """

    __slots__ = ("_begun", "_give", "_space", "emitted", "trim_start")

    def __init__(self, give: Callable[[str], None]) -> None:
        self._give = give
        self._space = ""
        self._begun = False
        self.emitted = False
        self.trim_start = False

    def put(self, text: str) -> None:
        """Add text; trailing white space stays pending."""
        text = self._space + without_tokens(text)
        if self.trim_start and not self._begun:
            text = text.lstrip(SPACE)
        kept = text.rstrip(SPACE)
        space = text[len(kept) :]
        if len(space) > MAX_SPACE:
            kept = text[:-MAX_SPACE]
            space = text[-MAX_SPACE:]
        self._space = space
        if kept:
            self._begun = True
            self.emitted = True
            self._give(kept)

    def at_marker(self) -> None:
        """Handle a marker: drop the white space before it, and start again after it."""
        self._space = ""
        self.emitted = False
        self.trim_start = True

    def at_end(self) -> None:
        """Handle the answer's end: trailing white space belongs to a text, but not directly after a marker."""
        if self.emitted or not self.trim_start:
            self._give_space()

    def _give_space(self) -> None:
        if self._space:
            self._give(self._space)
            self._space = ""


class AnswerSink:
    """Collects the events of one answer."""

    def __init__(self, tools: Mapping[str, ToolSpec], new_id: Callable[[int, str], str]) -> None:
        self._tools = tools
        self._new_id = new_id
        self._events: list[AnswerEvent] = []
        self._calls = 0
        self._custom: CustomInput | None = None
        self.open_call: ToolSpec | None = None
        self.text = Passage(lambda text: self._events.append(TextDelta(text)))
        self.reasoning = Passage(lambda text: self._events.append(ReasoningDelta(text)))

    def taken(self) -> list[AnswerEvent]:
        """Return the events since the last call, with neighbours of one kind merged."""
        events = self._events
        self._events = []
        return [_together(list(group)) for _, group in groupby(events, _kind)]

    @property
    def num_calls(self) -> int:
        """Return the number of calls started."""
        return self._calls

    @property
    def is_custom(self) -> bool:
        """Whether the open call is to a tool that takes a text."""
        return self._custom is not None

    def start_call(self, name: str, call_id: str = "") -> None:
        """Start a call. call_id: as the model wrote it, or empty."""
        self.text.at_marker()
        self.reasoning.at_marker()
        self.open_call = self._tools.get(name)
        identifier = call_id or self._new_id(self._calls, name)
        self._events.append(CallStart(self._calls, identifier, name))
        if self.open_call is not None and self.open_call.kind == "custom":
            self._custom = CustomInput(self._put_arguments)

    def arguments(self, text: str) -> None:
        """Add to the arguments' JSON; special tokens in it count as their text."""
        text = with_token_texts(text)
        if self._custom is not None:
            self._custom.put(text)
        else:
            self._put_arguments(text)

    def end_call(self, complete: bool = True) -> None:
        """End the open call. complete: False when it was cut off."""
        if self._custom is not None:
            self._custom.end()
            self._custom = None
        self._events.append(CallEnd(self._calls, complete))
        self._calls += 1
        self.open_call = None

    def _put_arguments(self, text: str) -> None:
        if text:
            self._events.append(ArgumentsDelta(self._calls, text))


def _kind(event: AnswerEvent) -> object:
    """Return a key that is equal for mergeable events; starts and ends of calls are never merged."""
    if isinstance(event, TextDelta | ReasoningDelta):
        return type(event)
    return event if not isinstance(event, ArgumentsDelta) else (ArgumentsDelta, event.index)


def _together(events: list[AnswerEvent]) -> AnswerEvent:
    first = events[0]
    if len(events) == 1 or isinstance(first, CallStart | CallEnd):
        return first
    text = "".join(event.text for event in events if isinstance(event, TextDelta | ReasoningDelta | ArgumentsDelta))
    return ArgumentsDelta(first.index, text) if isinstance(first, ArgumentsDelta) else type(first)(text)
