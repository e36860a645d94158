"""Chunks of a streamed answer, of /v1/chat/completions and /v1/completions alike.

Owns: the fields of chunks that clients look at, the pieces of text in them, whether an answer is whole. Never does: ask.
Called by: the terminal, the load of a benchmark.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import msgspec

from core_commands.client.endpoint import Answer, EndpointError
from core_commands.client.events import DONE, events
from core_commands.client.refusal import ErrorObject, sentence_of


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer. kind: `text`, `reasoning` or `call`."""

    kind: str
    text: str


class _Call(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    function: _Call | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class Choice(msgspec.Struct):
    """What a chunk adds to one answer."""

    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class Usage(msgspec.Struct):
    """Tokens, as the server counts them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class Chunk(msgspec.Struct):
    """One event of a stream; fields that nobody looks at are skipped."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: ErrorObject | str | None = None

    @property
    def is_last(self) -> bool:
        """Whether it ends an answer."""
        return any(choice.finish_reason for choice in self.choices)

    def pieces(self) -> list[Piece]:
        """The text that it brings, in order; none when it only begins or ends an answer."""
        found: list[Piece] = []
        for choice in self.choices:
            if choice.text:
                found.append(Piece("text", choice.text))
            if choice.delta is not None:
                found += _delta_pieces(choice.delta)
        return found


_CHUNK = msgspec.json.Decoder(Chunk)


async def chunks(answer: Answer) -> AsyncIterator[tuple[Chunk, float]]:
    """The chunks of a stream, each with the time at which it came, as `time.perf_counter()` says.

    Raises EndpointError for a stream that breaks off, also where a proxy ends it in good order.
    """
    is_whole = False
    async for event in events(answer):
        if event.data == DONE:
            is_whole = True
            continue
        chunk = decode_chunk(event.data)
        is_whole = is_whole or chunk.is_last
        yield chunk, event.arrived
    if not is_whole:
        raise EndpointError("The stream ended before the answer was whole.")


def decode_chunk(data: bytes) -> Chunk:
    """One chunk. Raises EndpointError for an error in the stream, with its sentence, and for what is no chunk."""
    try:
        chunk = _CHUNK.decode(data)
    except msgspec.DecodeError as error:
        raise EndpointError(f"The server sent an event that is no chunk of an answer: {error}.") from None
    if chunk.error is not None:
        raise EndpointError(sentence_of(chunk.error))
    return chunk


def _delta_pieces(delta: _Delta) -> list[Piece]:
    found: list[Piece] = []
    thought = delta.reasoning or delta.reasoning_content
    if thought:
        found.append(Piece("reasoning", thought))
    if delta.content:
        found.append(Piece("text", delta.content))
    for call in delta.tool_calls or ():
        if call.function is not None:
            text = (call.function.name or "") + (call.function.arguments or "")
            found.append(Piece("call", text))
    return found
