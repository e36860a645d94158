"""The blocks of one answer: begun, filled and ended by the answer's events, and put together from Anthropic's.

Owns: which block is open, the order of its events, the arguments of a call as an object. Never does: the events around blocks.
Called by: `core_apis.anthropic.writer`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pydantic_core

from core_apis.anthropic.signature import signature
from core_apis.protocol.anthropic_answer import (
    AnswerBlock,
    AnswerText,
    AnswerThinking,
    AnswerToolUse,
    BlockDelta,
    BlockPart,
    BlockStart,
    BlockStop,
    InputPart,
    MessagesEvent,
    Ping,
    SignaturePart,
    TextPart,
    ThinkingPart,
)
from core_formats.answer_events import AnswerEvent, ArgumentsDelta, CallEnd, CallStart, ReasoningDelta, TextDelta

UNREADABLE = "unreadable_arguments"
"""The only argument of a call whose own are no JSON object: their text."""


class Blocks:
    """The blocks of one answer, one after the other. num_calls: whole calls so far.

    omits_thinking: of thinking there is only the signature, that of no text.

    White space before a block belongs to none unless text follows: clients may not send blocks of nothing else back.
    """

    def __init__(self, *, omits_thinking: bool) -> None:
        self.omits_thinking = omits_thinking
        self.num_calls = 0
        self._index = -1
        self._open: type[AnswerBlock] | None = None
        self._thinking: list[str] = []
        self._space = ""

    def add(self, event: AnswerEvent) -> list[MessagesEvent]:
        """The events that follow from one of the answer's."""
        match event:
            case TextDelta(text):
                return self._text(text)
            case ReasoningDelta(text):
                return self._reasoning(text)
            case CallStart(_, call_id, name):
                return [*self.close(), *self._begin(AnswerToolUse(call_id, name, {}))]
            case ArgumentsDelta(_, text):
                return [BlockDelta(self._index, InputPart(text))]
            case CallEnd(_, complete):
                self.num_calls += complete
                return self.close()

    def close(self) -> list[MessagesEvent]:
        """The end of the block that is open, if one is."""
        self._space = ""
        if self._open is None:
            return []
        events: list[MessagesEvent] = []
        if self._open is AnswerThinking:
            text = "".join(self._thinking)
            events.append(BlockDelta(self._index, SignaturePart(signature(text))))
            self._thinking = []
        self._open = None
        events.append(BlockStop(self._index))
        return events

    def _text(self, text: str) -> list[MessagesEvent]:
        if self._open is not AnswerText:
            text = self._space + text
            if text.isspace():
                self._space = text
                return []
        return self._part(AnswerText(""), TextPart(text))

    def _reasoning(self, text: str) -> list[MessagesEvent]:
        if self.omits_thinking:
            return self._opened(AnswerThinking("", ""))
        self._thinking.append(text)
        return self._part(AnswerThinking("", ""), ThinkingPart(text))

    def _part(self, block: AnswerBlock, part: BlockPart) -> list[MessagesEvent]:
        """More of the open block, or of a new one that begins as `block`."""
        events = self._opened(block)
        events.append(BlockDelta(self._index, part))
        return events

    def _opened(self, block: AnswerBlock) -> list[MessagesEvent]:
        """The events until a block of this type is open."""
        if self._open is type(block):
            return []
        return [*self.close(), *self._begin(block)]

    def _begin(self, block: AnswerBlock) -> list[MessagesEvent]:
        self._index += 1
        self._open = type(block)
        events: list[MessagesEvent] = [BlockStart(self._index, block)]
        if self._index == 0:
            events.append(Ping())
        return events


def whole_blocks(events: Iterable[MessagesEvent]) -> list[AnswerBlock]:
    """The blocks that these events make, as a client puts them together."""
    blocks: list[AnswerBlock] = []
    arguments: list[str] = []
    for event in events:
        match event:
            case BlockStart(_, block):
                blocks.append(block)
                arguments = []
            case BlockDelta(_, InputPart(text)):
                arguments.append(text)
            case BlockDelta(_, part):
                _extend(blocks[-1], part)
            case BlockStop():
                block = blocks[-1]
                if isinstance(block, AnswerToolUse):
                    block.input = arguments_object("".join(arguments))
    return blocks


def _extend(block: AnswerBlock, part: BlockPart) -> None:
    match block, part:
        case AnswerText(), TextPart(text):
            block.text += text
        case AnswerThinking(), ThinkingPart(text):
            block.thinking += text
        case AnswerThinking(), SignaturePart(text):
            block.signature = text


def arguments_object(text: str) -> dict[str, Any]:
    """The arguments of a call as an object; of a call that was cut, as much as is certain."""
    if not text:
        return {}
    try:
        value = pydantic_core.from_json(text, allow_partial=True)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {UNREADABLE: text}
