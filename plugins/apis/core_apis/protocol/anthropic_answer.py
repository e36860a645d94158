"""Answers, events and errors of /v1/messages and /v1/messages/count_tokens, in Anthropic's shape.

Owns: their Structs. Never does: fill them. Called by: `core_apis.anthropic.writer`, `core_apis.errors`, the routes.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from core_apis.protocol.timings import Timings
from core_frontend.api.explanation import Explanation


class TokenCount(msgspec.Struct):
    """input_tokens: of the prompt that the same request would have."""

    input_tokens: int


class OutputTokens(msgspec.Struct):
    """thinking_tokens: of the answer's tokens, those of thinking."""

    thinking_tokens: int


class MessagesUsage(msgspec.Struct):
    """Counts in tokens.

    input_tokens: of the prompt, without those that came from the prefix cache.
    cache_creation_input_tokens: 0; keeping a prompt costs nothing.
    cache_read_input_tokens: of the prompt, from the prefix cache.
    """

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens_details: OutputTokens


class AnswerText(msgspec.Struct, tag="text"):
    """A block of text."""

    text: str


class AnswerThinking(msgspec.Struct, tag="thinking"):
    """A block of thinking. signature: see `core_apis.anthropic.signature`."""

    thinking: str
    signature: str


class AnswerToolUse(msgspec.Struct, tag="tool_use"):
    """A call. input: its arguments."""

    id: str
    name: str
    input: dict[str, Any]


AnswerBlock = AnswerText | AnswerThinking | AnswerToolUse


class MessagesAnswer(msgspec.Struct, tag="message", kw_only=True):
    """A whole answer, or in `message_start` its beginning.

    stop_reason: `end_turn`, `max_tokens`, `stop_sequence`, `tool_use`, `model_context_window_exceeded`, or None at first.
    stop_sequence: the one that ended it.
    explain, timings: of a whole answer, where that was asked for.
    """

    id: str
    role: str = "assistant"
    model: str
    content: list[AnswerBlock]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: MessagesUsage
    explain: Explanation | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET


class MessageStart(msgspec.Struct, tag="message_start"):
    """The first event."""

    message: MessagesAnswer


class BlockStart(msgspec.Struct, tag="content_block_start"):
    """A block begins; it is still empty."""

    index: int
    content_block: AnswerBlock


class Ping(msgspec.Struct, tag="ping"):
    """Nothing."""


class TextPart(msgspec.Struct, tag="text_delta"):
    """More text."""

    text: str


class ThinkingPart(msgspec.Struct, tag="thinking_delta"):
    """More thinking."""

    thinking: str


class SignaturePart(msgspec.Struct, tag="signature_delta"):
    """The signature of a block of thinking, which ends with it."""

    signature: str


class InputPart(msgspec.Struct, tag="input_json_delta"):
    """More of a call's arguments; all of them joined are a JSON object."""

    partial_json: str


BlockPart = TextPart | ThinkingPart | SignaturePart | InputPart


class BlockDelta(msgspec.Struct, tag="content_block_delta"):
    """More of a block."""

    index: int
    delta: BlockPart


class BlockStop(msgspec.Struct, tag="content_block_stop"):
    """A block ends."""

    index: int


class Ending(msgspec.Struct):
    """How an answer ended; see `MessagesAnswer`."""

    stop_reason: str
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, tag="message_delta"):
    """The ending, the usage in all, and where they were asked for the explanation and the times.

    These are here and not in the very last event because Anthropic's own client rebuilds that one from what it knows.
    """

    delta: Ending
    usage: MessagesUsage
    explain: Explanation | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET


class MessageStop(msgspec.Struct, tag="message_stop"):
    """The last event."""


MessagesEvent = MessageStart | BlockStart | Ping | BlockDelta | BlockStop | MessageDelta | MessageStop


class MessagesErrorObject(msgspec.Struct):
    """type: one of Anthropic's, such as `invalid_request_error`."""

    type: str
    message: str


class MessagesError(msgspec.Struct, tag="error"):
    """The body of an error, and the last event of a stream that failed."""

    error: MessagesErrorObject
