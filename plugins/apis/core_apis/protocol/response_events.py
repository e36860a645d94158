"""The events of a streamed response.

Owns: their Structs, one for each shape, in OpenAI's forms. Never does: decide which event comes when (the writer does).
Called by: `core_apis.responses.writer`.
"""

from __future__ import annotations

import msgspec

from core_apis.protocol.chat import TokenLogprob
from core_apis.protocol.response_objects import (
    OutputItem,
    OutputText,
    ReasoningText,
    ResponseObject,
    SummaryText,
)


class ResponseEvent(msgspec.Struct, kw_only=True):
    """One event. type: `response.` and what happened. sequence_number: counts from 0."""

    type: str
    sequence_number: int = 0


class LifecycleEvent(ResponseEvent, kw_only=True):
    """The response begins, continues or ends."""

    response: ResponseObject


class ItemEvent(ResponseEvent, kw_only=True):
    """An item begins or ends."""

    output_index: int
    item: OutputItem


class OfItem(ResponseEvent, kw_only=True):
    """An event within an item."""

    item_id: str
    output_index: int


class PartEvent(OfItem, kw_only=True):
    """A part of an item's content begins or ends."""

    content_index: int = 0
    part: OutputText | ReasoningText


class SummaryPartEvent(OfItem, kw_only=True):
    """A part of a summary begins or ends."""

    summary_index: int = 0
    part: SummaryText


class TextDeltaEvent(OfItem, kw_only=True):
    """An additional piece of a message."""

    content_index: int = 0
    delta: str
    logprobs: list[TokenLogprob]


class TextDoneEvent(OfItem, kw_only=True):
    """The whole text of a message."""

    content_index: int = 0
    text: str
    logprobs: list[TokenLogprob]


class ReasoningDeltaEvent(OfItem, kw_only=True):
    """An additional piece of reasoning."""

    content_index: int = 0
    delta: str


class ReasoningDoneEvent(OfItem, kw_only=True):
    """The whole text of the reasoning."""

    content_index: int = 0
    text: str


class SummaryDeltaEvent(OfItem, kw_only=True):
    """An additional piece of a summary."""

    summary_index: int = 0
    delta: str


class SummaryDoneEvent(OfItem, kw_only=True):
    """The whole text of a summary."""

    summary_index: int = 0
    text: str


class CallDeltaEvent(OfItem, kw_only=True):
    """An additional piece of a call's arguments or input."""

    delta: str


class FunctionDoneEvent(OfItem, kw_only=True):
    """The whole arguments of a function call."""

    name: str
    arguments: str


class McpDoneEvent(OfItem, kw_only=True):
    """The whole arguments of a tool server's call."""

    arguments: str


class McpEvent(OfItem, kw_only=True):
    """A tool server's call or list is in progress, complete, or failed."""


class CustomDoneEvent(OfItem, kw_only=True):
    """The whole input of a custom tool's call."""

    input: str


StreamedEvent = (
    LifecycleEvent
    | ItemEvent
    | PartEvent
    | SummaryPartEvent
    | TextDeltaEvent
    | TextDoneEvent
    | ReasoningDeltaEvent
    | ReasoningDoneEvent
    | SummaryDeltaEvent
    | SummaryDoneEvent
    | CallDeltaEvent
    | FunctionDoneEvent
    | CustomDoneEvent
    | McpDoneEvent
    | McpEvent
)
"""The union of all events."""
