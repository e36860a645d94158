"""The events of an answer: one stream that every API's writer reads, whatever the model's own format.

Owns: the types. Never does: parse (`core_formats` does) or write (the server does).
Called by: `core_formats`, the writers of chat, Responses and Messages, `LLM.chat`.

The order within one answer: reasoning, text and calls in the order in which the model gave them. A call is one `CallStart`,
then any number of `ArgumentsDelta`, then one `CallEnd`; calls do not overlap.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A further part of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A further part of the reasoning before an answer or call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """The start of a tool call.

    index: 0 for the first call of the answer, and so on.
    id: the model's own id, or a new one.
    name: the complete name of the tool.
    """

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """A further part of a call's arguments. All parts joined are one JSON object, or the text of a custom tool's input."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The end of a tool call.

    complete: False when the answer was cut off inside the call, whose arguments may then be invalid JSON.
    """

    index: int
    complete: bool = True


AnswerEvent = TextDelta | ReasoningDelta | CallStart | ArgumentsDelta | CallEnd
