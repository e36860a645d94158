"""Conversion of an answer's events into Anthropic's: blocks, their parts, the ending.

Owns: the order of events, stop reasons, usage. Never does: parse a model's text (`AnswerParser` does), or run anything.
Called by: the pipeline, through the row of `core_apis.routes.messages`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from types import MappingProxyType

import msgspec
from fastapi import Response

from core_apis.answers.parsing import AnswerParser
from core_apis.answers.prompt_output import Outputs, PromptOutput
from core_apis.answers.stream import written
from core_apis.anthropic.answer_blocks import Blocks, whole_blocks
from core_apis.body import json_response
from core_apis.context import ServingContext
from core_apis.errors import GenerationError, ended_early
from core_apis.generation import final_output
from core_apis.prepare.prepared import PreparedMessages
from core_apis.protocol.anthropic_answer import (
    AnswerBlock,
    Ending,
    MessageDelta,
    MessagesAnswer,
    MessagesEvent,
    MessageStart,
    MessageStop,
    MessagesUsage,
    OutputTokens,
)
from core_apis.protocol.timings import timings_of
from core_frontend.api.outputs import CompletionOutput, RequestOutput

STOP_REASONS: Mapping[str, str] = MappingProxyType(
    {
        "stop": "end_turn",
        "tool_calls": "tool_use",
        "length": "max_tokens",
    }
)
"""Anthropic's name of each finish reason of the engine, before the cases that need a closer look."""

_encode = msgspec.json.Encoder().encode


def event_bytes(event: MessagesEvent) -> bytes:
    """Serialize an event for the stream."""
    name = str(event.__struct_config__.tag)
    return b"event: " + name.encode() + b"\ndata: " + _encode(event) + b"\n\n"


class MessagesWriter:
    """The writer of the answer to one HTTP request.

    answer_id: `msg_...`.
    prepared: the prepared request.
    """

    def __init__(self, prepared: PreparedMessages, answer_id: str) -> None:
        self.prepared = prepared
        self.answer_id = answer_id
        self._parser = AnswerParser(prepared.chat)
        self._blocks = Blocks(omits_thinking=prepared.omits_thinking)
        self._completion_tokens = 0

    def opening(self, output: RequestOutput) -> MessageStart:
        """Return the first event. output: the first output that will follow."""
        return MessageStart(self._answer(output, [], None))

    def news(self, output: RequestOutput) -> list[MessagesEvent]:
        """Return the events that `output` adds, including the final ones if it ends the answer."""
        (completion,) = output.outputs
        self._completion_tokens += len(completion.token_ids)
        events: list[MessagesEvent] = []
        for event in self._parser.push(completion):
            events += self._blocks.add(event)
        if completion.finish_reason is None:
            return events
        events += self._blocks.close()
        ending = self._ended(completion)
        last = MessageDelta(ending, self._usage(output))
        self._fill_extras(last, output)
        events.append(last)
        events.append(MessageStop())
        return events

    def whole(self, output: RequestOutput) -> MessagesAnswer:
        """Return the whole answer for the final `output`."""
        (completion,) = output.outputs
        events = self.news(output)
        answer = self._answer(output, whole_blocks(events), self._ended(completion))
        self._fill_extras(answer, output)
        return answer

    def _fill_extras(self, answer: MessagesAnswer | MessageDelta, output: RequestOutput) -> None:
        """Set the optional fields that the client requested (explanation, receipt, energy, timings). output: the last one."""
        if output.explain is not None:
            answer.explain = output.explain
        if output.receipt is not None:
            answer.receipt = output.receipt
        if output.energy is not None:
            answer.energy = output.energy
        if self.prepared.chat.body.timings:
            answer.timings = timings_of(output, num_choices=1)

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
        """Return how a finished completion ended.

        Raises RequestError (503) for a pause, GenerationError for any other early end.
        """
        if completion.finish_reason == "abort":
            raise ended_early()
        reason = STOP_REASONS.get(completion.finish_reason or "")
        if reason is None:
            raise GenerationError(f"The answer ended early: {completion.finish_reason}.")
        stop_sequence: str | None = None
        says = completion.stop_reason
        if isinstance(says, str) and reason == "max_tokens":
            # The engine reports which buffer was full; that is no stop sequence.
            reason = "model_context_window_exceeded"
        elif isinstance(says, str):
            reason = "stop_sequence"
            stop_sequence = says
        elif reason == "end_turn" and self._blocks.num_calls:
            reason = "tool_use"
        elif reason == "max_tokens" and self._filled_context:
            reason = "model_context_window_exceeded"
        return Ending(reason, stop_sequence)

    @property
    def _filled_context(self) -> bool:
        """Whether the answer used all the room in the context while more tokens were requested."""
        room = self.prepared.chat.params.max_tokens or 0
        return self._completion_tokens >= room and room < self.prepared.max_tokens


class MessagesReply:
    """The answer to one request of the Messages API; see `core_apis.exchange.Answer`."""

    def __init__(self, context: ServingContext, prepared: PreparedMessages, answer_id: str, created: int) -> None:
        self._writer = MessagesWriter(prepared, answer_id)

    async def whole(self, outputs: Outputs) -> Response:
        """Return the whole answer, as in `Answer`. A long one is serialized in a thread."""
        final = await final_output(outputs)
        return await written(final, lambda: json_response(self._writer.whole(final)))

    async def events(self, first: PromptOutput, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        """Yield the events of a streamed answer, as in `Answer`."""
        async with aclosing(outputs):
            yield event_bytes(self._writer.opening(first[1]))
            item: PromptOutput | None = first
            while item is not None:
                events = await written(item[1], partial(self._news, item[1]))
                if events:
                    yield events
                item = await anext(outputs, None)

    def _news(self, output: RequestOutput) -> bytes:
        return b"".join(event_bytes(event) for event in self._writer.news(output))
