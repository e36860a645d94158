"""Turns engine outputs into the choices of /v1/chat/completions.

Owns: roles, deltas, logprobs of answers. Never does: run anything. Called by: `core.serving.routes.chat`.
"""

from __future__ import annotations

import time
from operator import attrgetter

import msgspec

from core.api.outputs import CompletionOutput, RequestOutput
from core.serving.context import ServingContext
from core.serving.logprobs import LogprobsFormatter
from core.serving.protocol.chat import (
    ChatChoice,
    ChatChunk,
    ChatLogprobs,
    ChatMessage,
    ChatRequest,
    ChatResponse,
    ChunkChoice,
    Delta,
)
from core.serving.protocol.messages import message_text
from core.serving.protocol.usage import UsageCounter


class ChatWriter:
    """One for each HTTP request. `usage` counts what went through."""

    def __init__(self, context: ServingContext, request: ChatRequest) -> None:
        messages = request.messages or []
        last = messages[-1]
        self.request = request
        self.role = str(last["role"])
        if request.opens_answer:
            self.role = context.server.response_role
        self.prefix = ""
        if request.echo and last["role"] == self.role:
            self.prefix = message_text(last)
        self.logprobs = LogprobsFormatter.of(context, request)
        self.usage = UsageCounter(context.server.enable_prompt_tokens_details)

    def opening(self, chunk: ChatChunk, output: RequestOutput) -> list[ChatChunk]:
        """The first chunks of a stream: the role of each choice, and the echoed text."""
        first = msgspec.structs.replace(chunk)
        if self.request.return_token_ids:
            first.prompt_token_ids = output.prompt_token_ids
        delta = Delta(role=self.role, content=self.prefix)
        opening: list[ChatChunk] = []
        for index in range(self.request.n or 1):
            choice = ChunkChoice(index, delta, logprobs=None, finish_reason=None)
            opening.append(msgspec.structs.replace(first, choices=[choice]))
        return opening

    def news(self, prompt_index: int, output: RequestOutput) -> list[ChunkChoice]:
        """The choices that `output` adds to, without the empty ones."""
        self.usage.add(prompt_index, output)
        deltas = [self._delta(completion) for completion in output.outputs]
        return [delta for delta in deltas if delta is not None]

    def whole(self, output: RequestOutput, answer_id: str, model: str) -> ChatResponse:
        """The answer in the final `output`."""
        self.usage.add(0, output)
        completions = sorted(output.outputs, key=attrgetter("index"))
        answer = ChatResponse(
            id=answer_id,
            object="chat.completion",
            created=int(time.time()),
            model=model,
            choices=[self._choice(completion) for completion in completions],
            usage=self.usage.usage(),
        )
        if self.request.prompt_logprobs is not None and output.prompt_logprobs is not None:
            answer.prompt_logprobs = self.logprobs.prompt(output.prompt_logprobs)
        if self.request.return_token_ids:
            answer.prompt_token_ids = output.prompt_token_ids
        if output.explain is not None:
            answer.explain = output.explain
        return answer

    def _delta(self, completion: CompletionOutput) -> ChunkChoice | None:
        text = completion.text
        logprobs = self._chat_logprobs(completion)
        ended = completion.finish_reason is not None
        if not (text or ended or logprobs is not None or self.request.return_token_ids):
            return None
        delta = Delta()
        if text or not ended:
            delta.content = text
        choice = ChunkChoice(completion.index, delta, logprobs, completion.finish_reason)
        if completion.stop_reason is not None:
            choice.stop_reason = completion.stop_reason
        if self.request.return_token_ids:
            choice.token_ids = list(completion.token_ids)
        return choice

    def _choice(self, completion: CompletionOutput) -> ChatChoice:
        choice = ChatChoice(
            index=completion.index,
            message=ChatMessage(self.role, self.prefix + completion.text),
            logprobs=self._chat_logprobs(completion),
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
        )
        if self.request.return_token_ids:
            choice.token_ids = list(completion.token_ids)
        return choice

    def _chat_logprobs(self, completion: CompletionOutput) -> ChatLogprobs | None:
        if not self.request.logprobs or completion.logprobs is None:
            return None
        top = self.request.top_logprobs or 0
        return self.logprobs.chat(completion.token_ids, completion.logprobs, top)
