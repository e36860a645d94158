"""One streamed answer of /v1/chat/completions or /v1/completions, as the events of a terminal.

Owns: the fields of chunks that are shown, times and counts of one answer. Never does: print, or keep a conversation.
Called by: chat, complete.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from core.client.endpoint import Endpoint, EndpointError
from core.client.events import events
from core.client.refusal import ErrorObject, refusal, sentence_of


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


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: ErrorObject | str | None = None


_CHUNK = msgspec.json.Decoder(_Chunk)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer. kind: `text`, `reasoning` or `call`."""

    kind: str
    text: str


@dataclass(slots=True)
class Counts:
    """Of one answer, while it comes.

    first_s, total_s: seconds until the first and the last part.
    finish_reason: as the server says; empty before.
    """

    prompt_tokens: int = 0
    output_tokens: int = 0
    first_s: float = 0.0
    total_s: float = 0.0
    finish_reason: str = ""

    @property
    def line(self) -> str:
        """For people."""
        decoding = self.total_s - self.first_s
        speed = f", {(self.output_tokens - 1) / decoding:.1f} tokens/s" if self.output_tokens > 1 and decoding else ""
        cut = ", cut at the most tokens" if self.finish_reason == "length" else ""
        return f"{self.prompt_tokens} tokens in, {self.output_tokens} out, first after {self.first_s:.2f} s{speed}{cut}"


async def generate(endpoint: Endpoint, path: str, body: Mapping[str, Any], counts: Counts) -> AsyncIterator[Piece]:
    """The parts of an answer. counts: filled in meanwhile. Raises EndpointError with the server's own sentence."""
    wanted = {**body, "stream": True, "stream_options": {"include_usage": True}}
    begin = time.perf_counter()
    async with endpoint.ask("POST", path, msgspec.json.encode(wanted)) as answer:
        if answer.status != 200:
            raise EndpointError(await refusal(answer))
        async for event in events(answer):
            chunk = _decoded(event.data)
            if chunk.usage is not None:
                counts.prompt_tokens = chunk.usage.prompt_tokens
                counts.output_tokens = chunk.usage.completion_tokens
            for piece in _pieces(chunk, counts):
                counts.total_s = event.arrived - begin
                counts.first_s = counts.first_s or counts.total_s
                yield piece


def _decoded(data: bytes) -> _Chunk:
    """One chunk. Raises EndpointError for an error in the stream, or what is no chunk."""
    try:
        chunk = _CHUNK.decode(data)
    except msgspec.DecodeError as error:
        raise EndpointError(f"The server sent an event that is no chunk of an answer: {error}.") from None
    if chunk.error is not None:
        raise EndpointError(sentence_of(chunk.error))
    return chunk


def _pieces(chunk: _Chunk, counts: Counts) -> list[Piece]:
    """What a chunk adds."""
    found: list[Piece] = []
    for choice in chunk.choices:
        if choice.finish_reason:
            counts.finish_reason = choice.finish_reason
        if choice.text:
            found.append(Piece("text", choice.text))
        delta = choice.delta
        if delta is None:
            continue
        thought = delta.reasoning or delta.reasoning_content
        if thought:
            found.append(Piece("reasoning", thought))
        if delta.content:
            found.append(Piece("text", delta.content))
        for call in delta.tool_calls or ():
            if call.function is not None:
                found.append(Piece("call", (call.function.name or "") + (call.function.arguments or "")))
    return found
