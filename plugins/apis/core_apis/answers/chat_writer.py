"""Conversion of engine outputs into the choices of /v1/chat/completions.

Owns: roles, deltas, logprobs and finish reasons of answers. Never does: parse (`answer_parsing` does) or run anything.
Called by: the pipeline, through the row of `core_apis.routes.chat`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from operator import attrgetter

import msgspec
from fastapi import Response
from msgspec import UNSET

from core_apis.answers.extras import Extras
from core_apis.answers.json_pieces import long_list
from core_apis.answers.logprobs import LogprobsFormatter
from core_apis.answers.message_parts import MessageParts
from core_apis.answers.parsing import AnswerParser
from core_apis.answers.prompt_output import Outputs, PromptOutput
from core_apis.answers.stream import AnswerStream, ShownPrompts, num_entries, written
from core_apis.answers.told_facts import add_facts
from core_apis.body import json_response
from core_apis.context import ServingContext
from core_apis.generation import final_output
from core_apis.prepare.prepared import PreparedChat
from core_apis.protocol.chat import (
    ChatChoice,
    ChatChunk,
    ChatLogprobs,
    ChatMessage,
    ChatResponse,
    ChunkChoice,
    Delta,
)
from core_apis.protocol.messages import message_text
from core_apis.protocol.sampling import is_flex
from core_apis.protocol.usage import UsageCounter
from core_formats.answers.plan import message_reasoning
from core_frontend.api.outputs import CompletionOutput, RequestOutput


class ChoiceState:
    """The state of one choice while its answer is written.

    parser: the parser of its answer.
    kinds:  the types of its calls, by call index.
    """

    def __init__(self, prepared: PreparedChat, number: int) -> None:
        self.parser = AnswerParser(prepared, number)
        self.kinds: dict[int, str] = {}


class ChatWriter:
    """The writer of the answer to one HTTP request. `usage` counts the tokens that it has written."""

    def __init__(self, context: ServingContext, prepared: PreparedChat) -> None:
        request = prepared.body
        messages = request.messages or []
        last = messages[-1]
        self.context = context
        self.request = request
        self.custom = {tool.name for tool in prepared.tools if tool.kind == "custom"}
        self.shows_reasoning = request.include_reasoning is not False
        self.is_parsed = prepared.format is not None
        self.choices = [ChoiceState(prepared, number) for number in range(request.n or 1)]
        self.role = str(last["role"])
        if request.opens_answer:
            self.role = context.server.response_role
        self.prefix = ""
        self.thought = ""
        if request.echo and last["role"] == self.role:
            self.prefix = message_text(last)
            self.thought = message_reasoning(last) if self.shows_reasoning else ""
        self.logprobs = LogprobsFormatter.of(context, request)
        self.usage = UsageCounter(context.server.enable_prompt_tokens_details)
        if prepared.format is not None and prepared.format.row.reasoning is not None:
            self.usage.reasoning_tokens = 0

    def opening(self, chunk: ChatChunk, output: RequestOutput) -> list[ChatChunk]:
        """Return the first chunks of a stream: the role of each choice, and the echoed text."""
        first = msgspec.structs.replace(chunk)
        if self.request.return_token_ids:
            first.prompt_token_ids = long_list(output.prompt_token_ids)
        delta = Delta(role=self.role, content=self.prefix)
        delta.reasoning = delta.reasoning_content = self.thought or UNSET
        opening: list[ChatChunk] = []
        for index in range(self.request.n or 1):
            choice = ChunkChoice(index, delta, logprobs=None, finish_reason=None)
            opening.append(msgspec.structs.replace(first, choices=[choice]))
        return opening

    def news(self, prompt_index: int, output: RequestOutput) -> list[ChunkChoice]:
        """Return the choices that `output` adds to, without empty ones."""
        self.usage.add(prompt_index, output)
        deltas = [self._delta(completion) for completion in output.outputs]
        if self.usage.reasoning_tokens is not None:
            self._count_reasoning()
        return [delta for delta in deltas if delta is not None]

    def whole(self, output: RequestOutput, answer_id: str, model: str) -> ChatResponse:
        """Return the whole answer for the final `output`."""
        self.usage.add(0, output)
        completions = sorted(output.outputs, key=attrgetter("index"))
        choices = [self._choice(completion) for completion in completions]
        if self.usage.reasoning_tokens is not None:
            self._count_reasoning()
        answer = ChatResponse(
            id=answer_id,
            object="chat.completion",
            created=int(time.time()),
            model=model,
            choices=choices,
            usage=self.usage.usage(),
            system_fingerprint=self.context.fingerprint,
        )
        if self.request.prompt_logprobs is not None and output.prompt_logprobs is not None:
            answer.prompt_logprobs = self.logprobs.prompt(output.prompt_logprobs)
        if self.request.return_token_ids:
            answer.prompt_token_ids = long_list(output.prompt_token_ids)
        if is_flex(self.request.service_tier, self.context.server.default_service_tier):
            answer.service_tier = "flex"
        extras = Extras(self.request)
        extras.add(0, output)
        extras.tell(answer)
        if output.kv_transfer_params is not None:
            answer.kv_transfer_params = output.kv_transfer_params
        return answer

    def _delta(self, completion: CompletionOutput) -> ChunkChoice | None:
        """Return what is new in an answer; None: nothing that a client sees."""
        parts = self._parts(completion) if self.is_parsed else None
        text = completion.text if parts is None else parts.text
        logprobs = self._chat_logprobs(completion)
        has_more = completion.finish_reason is not None or _calls_or_thinks(parts)
        is_told = logprobs is not None or completion.sampling_mask is not None or self.request.return_token_ids
        if not (text or has_more or is_told):
            return None
        delta = Delta()
        if text or not has_more:
            delta.content = text
        choice = ChunkChoice(completion.index, delta, logprobs, completion.finish_reason)
        if parts is not None:
            delta.reasoning = delta.reasoning_content = parts.reasoning or UNSET
            delta.tool_calls = parts.calls or UNSET
            choice.finish_reason = self.choices[completion.index].parser.finish_reason(completion)
        return self._with_details(choice, completion)

    def _with_details(self, choice: ChunkChoice, completion: CompletionOutput) -> ChunkChoice:
        if completion.stop_reason is not None:
            choice.stop_reason = completion.stop_reason
        add_facts(choice, completion)
        if self.request.return_token_ids:
            choice.token_ids = list(completion.token_ids)
        return choice

    def _choice(self, completion: CompletionOutput) -> ChatChoice:
        parts = self._parts(completion)
        text = self.prefix + parts.text
        message = ChatMessage(self.role, None if parts.calls and not text else text, refusal=None)
        message.reasoning = message.reasoning_content = self.thought + parts.reasoning or UNSET
        message.tool_calls = parts.whole_calls
        choice = ChatChoice(
            index=completion.index,
            message=message,
            logprobs=self._chat_logprobs(completion),
            finish_reason=self.choices[completion.index].parser.finish_reason(completion),
            stop_reason=completion.stop_reason,
        )
        add_facts(choice, completion)
        if self.request.return_token_ids:
            choice.token_ids = list(completion.token_ids)
        return choice

    def _parts(self, completion: CompletionOutput) -> MessageParts:
        """Return the message parts in one output, without reasoning that the client does not want to see."""
        state = self.choices[completion.index]
        parts = MessageParts(state.parser.push(completion), self.custom, state.kinds)
        if not self.shows_reasoning:
            parts.reasoning = ""
        return parts

    def _count_reasoning(self) -> None:
        self.usage.reasoning_tokens = sum(state.parser.reasoning_tokens for state in self.choices)

    def _chat_logprobs(self, completion: CompletionOutput) -> ChatLogprobs | None:
        if not self.request.logprobs or completion.logprobs is None:
            return None
        top = self.request.top_logprobs or 0
        return self.logprobs.long_chat(completion.token_ids, completion.logprobs, top)


def _calls_or_thinks(parts: MessageParts | None) -> bool:
    """Whether an output has a piece of a call or of reasoning."""
    return parts is not None and bool(parts.calls or parts.reasoning)


class ChatAnswer:
    """The answer to one chat request; see `core_apis.exchange.Answer`. created: seconds since the epoch, in chunks."""

    def __init__(self, context: ServingContext, prepared: PreparedChat, answer_id: str, created: int) -> None:
        self._context = context
        self._prepared = prepared
        self._answer_id = answer_id
        self._created = created
        self._writer = ChatWriter(context, prepared)

    async def whole(self, outputs: Outputs) -> Response:
        """Return the whole answer, as in `Answer`. A long one is serialized in a thread."""
        final = await final_output(outputs)
        num_new = num_entries(final) + ShownPrompts(self._prepared.body).num_new(0, final)
        return await written(final, lambda: json_response(self._body(final)), num_new)

    def events(self, first: PromptOutput, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        """Yield the events of a streamed answer, as in `Answer`."""
        chunk = ChatChunk(
            id=self._answer_id,
            object="chat.completion.chunk",
            created=self._created,
            model=self._prepared.model,
            choices=[],
            system_fingerprint=self._context.fingerprint,
        )
        return AnswerStream(self._context, self._prepared.body, first, outputs).events(chunk, self._writer)

    def _body(self, final: RequestOutput) -> ChatResponse:
        return self._writer.whole(final, self._answer_id, self._prepared.model)
