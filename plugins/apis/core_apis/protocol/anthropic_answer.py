"""Answers, events and errors of /v1/messages and /v1/messages/count_tokens, in Anthropic's shape.

Owns: their Structs. Never does: fill them. Called by: `core_apis.anthropic.writer`, `core_apis.errors`, the routes.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from core_apis.protocol.timings import Timings
from core_frontend.api.explanation import Explanation
from core_observers.energy_use import EnergyUse
from core_observers.receipts.receipt import IssuedReceipt


class TokenCount(msgspec.Struct):
    """The number of tokens of a prompt. input_tokens: of the prompt that the same request would have."""

    input_tokens: int


class OutputTokens(msgspec.Struct):
    """The split of the output tokens. thinking_tokens: how many of the answer's tokens are thinking."""

    thinking_tokens: int


class MessagesUsage(msgspec.Struct):
    """Counts in tokens.

    input_tokens: of the prompt, without those that came from the prefix cache.
    cache_creation_input_tokens: always 0: caching a prompt costs nothing.
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
    """A block with a tool call. input: its arguments."""

    id: str
    name: str
    input: dict[str, Any]


AnswerBlock = AnswerText | AnswerThinking | AnswerToolUse


class MessagesAnswer(msgspec.Struct, tag="message", kw_only=True):
    """A whole answer, or in `message_start` its beginning.

    stop_reason: `end_turn`, `max_tokens`, `stop_sequence`, `tool_use`, `model_context_window_exceeded`, or None at
        first.
    stop_sequence: the one that ended it.
    explain, receipt, timings, energy: of a whole answer, if they were requested.
    """

    id: str
    role: str = "assistant"
    model: str
    content: list[AnswerBlock]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: MessagesUsage
    explain: Explanation | UnsetType = UNSET
    receipt: IssuedReceipt | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    energy: EnergyUse | UnsetType = UNSET


class MessageStart(msgspec.Struct, tag="message_start"):
    """The first event of a stream, with the beginning of the answer."""

    message: MessagesAnswer


class BlockStart(msgspec.Struct, tag="content_block_start"):
    """The beginning of a block, which is still empty."""

    index: int
    content_block: AnswerBlock


class Ping(msgspec.Struct, tag="ping"):
    """An event without content, which keeps the connection alive."""


class TextPart(msgspec.Struct, tag="text_delta"):
    """An additional piece of text."""

    text: str


class ThinkingPart(msgspec.Struct, tag="thinking_delta"):
    """An additional piece of thinking."""

    thinking: str


class SignaturePart(msgspec.Struct, tag="signature_delta"):
    """The signature of a block of thinking, the last part of the block."""

    signature: str


class InputPart(msgspec.Struct, tag="input_json_delta"):
    """An additional piece of a call's arguments; all pieces joined are a JSON object."""

    partial_json: str


BlockPart = TextPart | ThinkingPart | SignaturePart | InputPart


class BlockDelta(msgspec.Struct, tag="content_block_delta"):
    """An additional piece of a block."""

    index: int
    delta: BlockPart


class BlockStop(msgspec.Struct, tag="content_block_stop"):
    """The end of a block."""

    index: int


class Ending(msgspec.Struct):
    """The end of an answer; see `MessagesAnswer`."""

    stop_reason: str
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, tag="message_delta"):
    """The ending, the total usage, and the explanation, receipt, timings and energy if they were requested.

    These are here and not in the very last event because Anthropic's own client rebuilds that one from what it knows.
    """

    delta: Ending
    usage: MessagesUsage
    explain: Explanation | UnsetType = UNSET
    receipt: IssuedReceipt | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    energy: EnergyUse | UnsetType = UNSET


class MessageStop(msgspec.Struct, tag="message_stop"):
    """The last event of a stream."""


MessagesEvent = MessageStart | BlockStart | Ping | BlockDelta | BlockStop | MessageDelta | MessageStop


class MessagesErrorObject(msgspec.Struct):
    """An error. type: one of Anthropic's, such as `invalid_request_error`."""

    type: str
    message: str


class MessagesError(msgspec.Struct, tag="error"):
    """The body of an error, and the last event of a failed stream."""

    error: MessagesErrorObject
