"""Chunks of a streamed answer, of /v1/chat/completions and /v1/completions alike.

Owns: the fields of chunks that clients read, the pieces of text in them, the check for completeness. Never does: send a
request.
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
    """The content that a chunk adds to one answer."""

    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class Usage(msgspec.Struct):
    """Token counts reported by the server."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class Chunk(msgspec.Struct):
    """One event of a stream; unused fields are skipped."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: ErrorObject | str | None = None

    @property
    def is_last(self) -> bool:
        """Whether this chunk ends an answer."""
        return any(choice.finish_reason for choice in self.choices)

    def pieces(self) -> list[Piece]:
        """Return the chunk's pieces of text, in order; none when it only begins or ends an answer."""
        found: list[Piece] = []
        for choice in self.choices:
            if choice.text:
                found.append(Piece("text", choice.text))
            if choice.delta is not None:
                found += _delta_pieces(choice.delta)
        return found


_CHUNK = msgspec.json.Decoder(Chunk)


async def chunks(answer: Answer) -> AsyncIterator[tuple[Chunk, float]]:
    """Yield the chunks of a stream, each with its arrival time in `time.perf_counter()`.

    Raises EndpointError for an interrupted stream, even when a proxy terminates it cleanly.
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
    """Decode one chunk. Raises EndpointError for an error in the stream, with its message, and for an invalid chunk."""
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
