"""Conversion of an answer's events into the parts of a chat message: text, reasoning, calls.

Owns: OpenAI's form of calls. Never does: parse text, or know choices and chunks. Called by: `core_apis.answers.chat_writer`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec import UNSET, UnsetType

from core_apis.protocol.chat import CustomCall, FunctionCall, ToolCall
from core_formats.answers.events import AnswerEvent, ArgumentsDelta, CallEnd, CallStart, ReasoningDelta, TextDelta


class MessageParts:
    """The message parts made of some events of one choice: of the whole answer, or of one output.

    custom: names of custom tools, whose calls have a form of their own.
    kinds:  the type of each call, by index; kept by the caller over the outputs of one choice.
    text, reasoning: joined.
    calls:  one for each call that the events begin or continue.
    """

    def __init__(self, events: Iterable[AnswerEvent], custom: Collection[str], kinds: dict[int, str]) -> None:
        self.text = ""
        self.reasoning = ""
        self.calls: list[ToolCall] = []
        self._custom = custom
        self._kinds = kinds
        for event in events:
            self._add(event)

    @property
    def whole_calls(self) -> list[ToolCall] | UnsetType:
        """Return the calls of a message that is not streamed: their place in the list is their index."""
        for call in self.calls:
            call.index = UNSET
        return self.calls or UNSET

    def _add(self, event: AnswerEvent) -> None:
        match event:
            case TextDelta(text):
                self.text += text
            case ReasoningDelta(text):
                self.reasoning += text
            case CallStart(index, call_id, name):
                self._kinds[index] = "custom" if name in self._custom else "function"
                call = ToolCall(index, call_id, self._kinds[index])
                self.calls.append(call)
                self._continue(call, "", name)
            case ArgumentsDelta(index, text):
                self._continue(self._call(index), text)
            case CallEnd(index, complete):
                if not complete:
                    self._call(index).incomplete = True

    def _call(self, index: int) -> ToolCall:
        """Return the call with this index; if it began in an earlier output, a new part of it."""
        if not self.calls or self.calls[-1].index != index:
            self.calls.append(ToolCall(index))
        return self.calls[-1]

    def _continue(self, call: ToolCall, text: str, name: str | UnsetType = UNSET) -> None:
        assert isinstance(call.index, int)
        if self._kinds[call.index] == "custom":
            custom = call.custom or CustomCall(name, "")
            custom.input = (custom.input or "") + text
            call.custom = custom
        else:
            function = call.function or FunctionCall(name, "")
            function.arguments = (function.arguments or "") + text
            call.function = function
