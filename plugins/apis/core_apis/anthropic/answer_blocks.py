"""The content blocks of one answer: opened, filled and closed by the answer's events, or assembled from Anthropic's
events.

Owns: which block is open, the order of its events, and the arguments of a call as an object. Never does: write the
events around blocks. Called by: `core_apis.anthropic.writer`.
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
from core_formats.answers.events import AnswerEvent, ArgumentsDelta, CallEnd, CallStart, ReasoningDelta, TextDelta

UNREADABLE = "unreadable_arguments"
"""The single argument of a call whose arguments are not a JSON object; it holds their text."""


class Blocks:
    """The blocks of one answer, in order. num_calls: number of complete calls so far.

    omits_thinking: whether a thinking block has only a signature, that of an empty text.

    White space before a block belongs to a block only if text follows: clients may not send back blocks of nothing
    else.
    """

    def __init__(self, *, omits_thinking: bool) -> None:
        self.omits_thinking = omits_thinking
        self.num_calls = 0
        self._index = -1
        self._open: type[AnswerBlock] | None = None
        self._thinking: list[str] = []
        self._space = ""

    def add(self, event: AnswerEvent) -> list[MessagesEvent]:
        """Return Anthropic's events for one event of the answer."""
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
        """Return the events that end the open block, if there is one."""
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
        """Return the events that append a part to the open block, or to a new one that begins as `block`."""
        events = self._opened(block)
        events.append(BlockDelta(self._index, part))
        return events

    def _opened(self, block: AnswerBlock) -> list[MessagesEvent]:
        """Return the events that are needed until a block of this type is open."""
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
    """Assemble blocks from these events, as a client does."""
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
    """Return the arguments of a call as an object; for a truncated call, only those that are certain."""
    if not text:
        return {}
    try:
        value = pydantic_core.from_json(text, allow_partial=True)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {UNREADABLE: text}
