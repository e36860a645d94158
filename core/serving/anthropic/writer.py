"""Turns the events of an answer into Anthropic's: blocks, their parts, the ending.

Owns: the order of events, blocks, stop reasons, usage. Never does: parse a model's text (`AnswerParser` does), or run
anything. Called by: `core.serving.routes.messages`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import pydantic_core

from core.api.answer_events import AnswerEvent, ArgumentsDelta, CallEnd, CallStart, ReasoningDelta, TextDelta
from core.api.outputs import CompletionOutput, RequestOutput
from core.serving.answer_parsing import AnswerParser
from core.serving.anthropic.signature import signature
from core.serving.errors import GenerationError
from core.serving.preparation import PreparedMessages
from core.serving.protocol.anthropic_answer import (
    AnswerBlock,
    AnswerText,
    AnswerThinking,
    AnswerToolUse,
    BlockDelta,
    BlockPart,
    BlockStart,
    BlockStop,
    Ending,
    InputPart,
    MessageDelta,
    MessagesAnswer,
    MessagesEvent,
    MessageStart,
    MessageStop,
    MessagesUsage,
    OutputTokens,
    Ping,
    SignaturePart,
    TextPart,
    ThinkingPart,
)

UNREADABLE = "unreadable_arguments"
"""The only argument of a call whose own are no JSON object: their text."""

STOP_REASONS: Mapping[str, str] = MappingProxyType(
    {
        "stop": "end_turn",
        "tool_calls": "tool_use",
        "length": "max_tokens",
    }
)
"""The engine's reasons by Anthropic's names, before looking closer."""

_encode = msgspec.json.Encoder().encode


def event_bytes(event: MessagesEvent) -> bytes:
    """An event as it is sent."""
    name = str(event.__struct_config__.tag)
    return b"event: " + name.encode() + b"\ndata: " + _encode(event) + b"\n\n"


class MessagesWriter:
    """One for each HTTP request.

    answer_id: `msg_...`.
    prepared: as it was prepared.
    """

    def __init__(self, prepared: PreparedMessages, answer_id: str) -> None:
        self.prepared = prepared
        self.answer_id = answer_id
        self._parser = AnswerParser(prepared.chat)
        self._blocks = Blocks(omits_thinking=prepared.omits_thinking)
        self._completion_tokens = 0
        self._ending: Ending | None = None

    def opening(self, output: RequestOutput) -> MessageStart:
        """The first event. output: the first one that will follow."""
        return MessageStart(self._answer(output, [], None))

    def news(self, output: RequestOutput) -> list[MessagesEvent]:
        """The events that `output` adds, with the last ones when it ends the answer."""
        (completion,) = output.outputs
        self._completion_tokens += len(completion.token_ids)
        events: list[MessagesEvent] = []
        for event in self._parser.push(completion):
            events += self._blocks.add(event)
        if completion.finish_reason is None:
            return events
        events += self._blocks.close()
        ending = self._ended(completion)
        events.append(MessageDelta(ending, self._usage(output)))
        events.append(MessageStop())
        return events

    def whole(self, output: RequestOutput) -> MessagesAnswer:
        """The answer in the final `output`."""
        (completion,) = output.outputs
        events = self.news(output)
        return self._answer(output, whole_blocks(events), self._ended(completion))

    def _answer(self, output: RequestOutput, content: list[AnswerBlock], ending: Ending | None) -> MessagesAnswer:
        answer = MessagesAnswer(
            id=self.answer_id,
            model=self.prepared.chat.model,
            content=content,
            usage=self._usage(output),
        )
        if ending is not None:
            answer.stop_reason = ending.stop_reason
            answer.stop_sequence = ending.stop_sequence
        return answer

    def _usage(self, output: RequestOutput) -> MessagesUsage:
        cached = output.num_cached_tokens
        return MessagesUsage(
            input_tokens=len(output.prompt_token_ids) - cached,
            output_tokens=self._completion_tokens,
            cache_creation_input_tokens=0,
            cache_read_input_tokens=cached,
            output_tokens_details=OutputTokens(self._parser.reasoning_tokens),
        )

    def _ended(self, completion: CompletionOutput) -> Ending:
        """How a finished completion ended. Raises GenerationError when the engine gave it up."""
        reason = STOP_REASONS.get(completion.finish_reason or "")
        if reason is None:
            raise GenerationError(f"The answer ended early: {completion.finish_reason}.")
        stop_sequence: str | None = None
        if isinstance(completion.stop_reason, str):
            reason = "stop_sequence"
            stop_sequence = completion.stop_reason
        elif reason == "end_turn" and self._blocks.num_calls:
            reason = "tool_use"
        elif reason == "max_tokens" and self._completion_tokens < self.prepared.max_tokens:
            reason = "model_context_window_exceeded"
        return Ending(reason, stop_sequence)


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
