"""Streaming of one answer: a single loop for chats and completions.

Owns: the order of chunks (opening, updates, usage), where usage is reported, and where long outputs are serialized.
Never does: send, or format choices (the writers do). Called by: the completion routes, which hand the events to
`EventStream`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import UnsetType

from core_apis.answers.extras import Extras
from core_apis.answers.prompt_output import PromptOutput
from core_apis.context import ServingContext
from core_apis.protocol.sampling import GenerationRequest
from core_apis.protocol.timings import Timings
from core_apis.protocol.usage import Usage, UsageCounter
from core_frontend.api.explanation import Explanation
from core_frontend.api.outputs import RequestOutput
from core_observers.energy_use import EnergyUse
from core_observers.receipts.receipt import IssuedReceipt

T = TypeVar("T")

LIGHT = 2000
"""Number of tokens and log probabilities that take a few milliseconds to write."""

OUTPUT_COST = 50
"""Fixed cost of an output, in tokens, added to its own tokens."""

DROPPED = 512
"""Number of positions whose log probabilities are freed in one go."""

_encode = msgspec.json.Encoder().encode


class Chunk(Protocol):
    """The message of one event. The same object is sent again and again, each time with other choices.

    usage: UNSET leaves it out; None says that the last chunk will bring it.
    explain, receipt, timings, energy: set on the last chunk only.
    """

    choices: list[Any]
    usage: Usage | UnsetType | None
    explain: Explanation | list[Explanation] | UnsetType
    receipt: IssuedReceipt | list[IssuedReceipt] | UnsetType
    timings: Timings | list[Timings] | UnsetType
    energy: EnergyUse | list[EnergyUse] | UnsetType


ChunkT = TypeVar("ChunkT", bound=Chunk)


class StreamWriter(Protocol[ChunkT]):
    """Converts outputs into choices. usage: counts their tokens."""

    usage: UsageCounter

    def opening(self, chunk: ChunkT, output: RequestOutput) -> Iterable[ChunkT]:
        """Return the chunks that precede any text.

        chunk: one without choices. output: the first output that will follow.
        """
        ...

    def news(self, prompt_index: int, output: RequestOutput) -> Iterable[Any]:
        """Return the choices that `output` adds to, without empty ones."""
        ...


class AnswerStream:
    """The events of one streamed answer.

    first:   the first output, already awaited: an error before it gets an HTTP status of its own.
    outputs: the remaining outputs; closed together with the stream.
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
        """Yield `data: ...` blocks. chunk: a chunk without choices, which is refilled for each event."""
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
                if cost > LIGHT:  # a slow client leaves many outputs ready; other requests wait as well
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
        """Return the serialized events of one output."""
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
    """Counter of the prompt tokens that an answer echoes with the first output of each choice.

    wanted: whether the answer echoes any.
    """

    def __init__(self, request: GenerationRequest) -> None:
        self.wanted = bool(request.return_token_ids or getattr(request, "echo", False))
        self._seen: set[tuple[int, int]] = set()

    def num_new(self, prompt_index: int, output: RequestOutput) -> int:
        """Return the number of prompt tokens that this output echoes."""
        if not self.wanted:
            return 0
        num_seen = len(self._seen)
        self._seen.update((prompt_index, completion.index) for completion in output.outputs)
        return (len(self._seen) - num_seen) * len(output.prompt_token_ids)


async def written(output: RequestOutput, work: Callable[[], T], num_new: int | None = None) -> T:
    """Return the result of `work`, which serializes `output`.

    Small outputs are written at once, large ones in a thread while other requests go on. Afterwards the output has no
    log probabilities any more: freeing a million of them would block the event loop.

    num_new: number of tokens and log probabilities to write; None: that of `num_entries`.
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
    """Return the result of `work`, which runs in a thread if it is heavy.

    A cancelled caller still waits until the work is done, because the caller's next step changes the same objects.
    """
    if not heavy:
        return work()
    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait({working})
        raise


def num_entries(output: RequestOutput) -> int:
    """Return the number of tokens, log probabilities, ids of masks and of experts to write."""
    count = 0
    for completion in output.outputs:
        first = completion.logprobs[0] if completion.logprobs else ()
        count += len(completion.token_ids) * (1 + len(first))
        if completion.sampling_mask is not None:
            count += sum(map(len, completion.sampling_mask.token_ids))
        if completion.routed_experts is not None:
            count += completion.routed_experts.size
    if output.prompt_logprobs is not None and len(output.prompt_logprobs) > 1:
        count += len(output.prompt_logprobs) * (1 + len(output.prompt_logprobs[1] or ()))
    return count
