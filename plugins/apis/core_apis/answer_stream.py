"""An answer as it is streamed: one loop for conversations and completions.

Owns: the order of chunks (opening, news, usage), where usage is told, and where long outputs are written. Never does: send, or
format choices (the writers do). Called by: the completion routes, which hand the events to `EventStream`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import UnsetType

from core_apis.context import ServingContext
from core_apis.extras import Extras
from core_apis.prompt_output import PromptOutput
from core_apis.protocol.sampling import GenerationRequest
from core_apis.protocol.timings import Timings
from core_apis.protocol.usage import Usage, UsageCounter
from core_frontend.api.explanation import Explanation
from core_frontend.api.outputs import RequestOutput

T = TypeVar("T")

LIGHT = 2000
"""Tokens and log-probabilities that take some milliseconds to write."""

OUTPUT_COST = 50
"""What an output costs besides its tokens, counted in tokens."""

DROPPED = 512
"""Log-probabilities of positions that are freed at once."""

_encode = msgspec.json.Encoder().encode


class Chunk(Protocol):
    """The message of one event; the same object is sent again and again, each time with other choices.

    usage: UNSET leaves it out; None says that the last chunk will bring it.
    explain, timings: for the last chunk alone.
    """

    choices: list[Any]
    usage: Usage | UnsetType | None
    explain: Explanation | list[Explanation] | UnsetType
    timings: Timings | list[Timings] | UnsetType


ChunkT = TypeVar("ChunkT", bound=Chunk)


class StreamWriter(Protocol[ChunkT]):
    """Turns outputs into choices. usage: counts their tokens."""

    usage: UsageCounter

    def opening(self, chunk: ChunkT, output: RequestOutput) -> Iterable[ChunkT]:
        """The chunks before any text. chunk: one without choices. output: the first one that will follow."""
        ...

    def news(self, prompt_index: int, output: RequestOutput) -> Iterable[Any]:
        """The choices that `output` adds to, without the empty ones."""
        ...


class AnswerStream:
    """The events of one streamed answer.

    first:   the first output, which has been waited for: what fails before it is answered with a status of its own.
    outputs: those behind it; closed with the stream.
    """

    def __init__(
        self,
        context: ServingContext,
        request: GenerationRequest,
        first: PromptOutput,
        outputs: AsyncGenerator[PromptOutput, None],
    ) -> None:
        forced = context.server.enable_force_include_usage
        self._extras = Extras(request)
        self._shown = ShownPrompts(request)
        self._tells_usage = request.include_usage(forced=forced)
        self._tells_usage_always = request.continuous_usage(forced=forced)
        self._first = first
        self._outputs = outputs

    async def events(self, chunk: ChunkT, writer: StreamWriter[ChunkT]) -> AsyncGenerator[bytes, None]:
        """`data: ...` blocks. chunk: without choices; it is filled anew for each event."""
        if self._tells_usage:
            chunk.usage = None
        async with aclosing(self._outputs):
            is_long = self._shown.wanted and len(self._first[1].prompt_token_ids) > LIGHT
            for opening in await in_thread_if(is_long, partial(writer.opening, chunk, self._first[1])):
                yield await in_thread_if(is_long, partial(_event, opening))
            item: PromptOutput | None = self._first
            cost = 0
            while item is not None:
                num_new = num_entries(item[1]) + self._shown.num_new(*item)
                cost += OUTPUT_COST + num_new
                if cost > LIGHT:  # a client that was slow has many outputs ready, and others wait as well
                    await asyncio.sleep(0)
                    cost = 0
                if self._extras.wanted:
                    self._extras.add(*item)
                # With echo the first output of each prompt holds the log-probabilities of that prompt.
                for event in await written(item[1], partial(self._events_of, chunk, writer, item), num_new):
                    yield event
                item = await anext(self._outputs, None)
        if self._tells_usage or self._extras.wanted:
            chunk.choices = []
            if self._tells_usage:
                chunk.usage = writer.usage.usage()
            self._extras.tell(chunk)
            yield _event(chunk)

    def _events_of(self, chunk: ChunkT, writer: StreamWriter[ChunkT], item: PromptOutput) -> list[bytes]:
        """The events that one output makes."""
        events: list[bytes] = []
        for choice in writer.news(*item):
            chunk.choices = [choice]
            if self._tells_usage_always:
                chunk.usage = writer.usage.usage()
            events.append(_event(chunk))
        return events


def _event(chunk: Chunk) -> bytes:
    return b"data: " + _encode(chunk) + b"\n\n"


class ShownPrompts:
    """Counts the tokens of prompts that an answer shows, with the first output of each choice.

    wanted: whether it shows any.
    """

    def __init__(self, request: GenerationRequest) -> None:
        self.wanted = bool(request.return_token_ids or getattr(request, "echo", False))
        self._seen: set[tuple[int, int]] = set()

    def num_new(self, prompt_index: int, output: RequestOutput) -> int:
        """Tokens of the prompt that this output shows."""
        if not self.wanted:
            return 0
        num_seen = len(self._seen)
        self._seen.update((prompt_index, completion.index) for completion in output.outputs)
        return (len(self._seen) - num_seen) * len(output.prompt_token_ids)


async def written(output: RequestOutput, work: Callable[[], T], num_new: int | None = None) -> T:
    """The result of `work`, which writes `output`: at once when that is quick, else in a thread while others go on. Then the
    output has no log-probabilities any more: to free a million of them would hold up the event loop.

    num_new: tokens and log-probabilities to write; None: those of `num_entries`.
    """
    if (num_entries(output) if num_new is None else num_new) <= LIGHT:
        return work()
    return await in_thread_if(True, partial(_written_and_freed, output, work))


def _written_and_freed(output: RequestOutput, work: Callable[[], T]) -> T:
    result = work()
    for completion in output.outputs:
        while completion.logprobs:
            del completion.logprobs[-DROPPED:]
    return result


async def in_thread_if(heavy: bool, work: Callable[[], T]) -> T:
    """The result of `work`, which is done in a thread when it is heavy. A caller that is cancelled waits until it is done: what
    comes next changes the same objects."""
    if not heavy:
        return work()
    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait({working})
        raise


def num_entries(output: RequestOutput) -> int:
    """Tokens and log-probabilities to write."""
    count = 0
    for completion in output.outputs:
        first = completion.logprobs[0] if completion.logprobs else ()
        count += len(completion.token_ids) * (1 + len(first))
    if output.prompt_logprobs is not None and len(output.prompt_logprobs) > 1:
        count += len(output.prompt_logprobs) * (1 + len(output.prompt_logprobs[1] or ()))
    return count
