"""The answer to several chats in one request.

Owns: one choice for each conversation, and the sum of their tokens. Never does: convert an output (`ChatWriter` does).
Called by: the pipeline, through the row of `core_apis.routes.chat`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from fastapi import Response
from msgspec import UNSET

from core_apis.answers.chat_writer import ChatWriter
from core_apis.answers.extras import Extras
from core_apis.answers.prompt_output import Outputs, PromptOutput
from core_apis.answers.stream import LIGHT, in_thread_if, num_entries, written
from core_apis.body import json_response
from core_apis.context import ServingContext
from core_apis.prepare.prepared import PreparedChats
from core_apis.protocol.chat import ChatResponse
from core_apis.protocol.usage import CompletionTokensDetails, PromptTokensDetails, Usage


class ChatsAnswer:
    """The answer to one request; see `core_apis.exchange.Answer`. created: seconds since the epoch."""

    def __init__(self, context: ServingContext, prepared: PreparedChats, answer_id: str, created: int) -> None:
        self._context = context
        self._prepared = prepared
        self._answer_id = answer_id
        self._created = created

    async def whole(self, outputs: Outputs) -> Response:
        """Return the whole answer, as in `Answer`. Long ones are written and serialized in a thread."""
        answers: dict[int, ChatResponse] = {}
        extras = Extras(self._prepared.body)
        num_written = 0
        async with aclosing(outputs):
            async for index, output in outputs:
                writer = ChatWriter(self._context, self._prepared.chats[index])
                num_new = num_entries(output)
                write = partial(writer.whole, output, self._answer_id, self._prepared.model)
                answers[index] = await written(output, write, num_new)
                extras.add(index, output)
                num_written += num_new
                await asyncio.sleep(0)  # several chats may end in one step; other requests get their turn between them
        whole = self._joined([answers[index] for index in sorted(answers)])
        extras.tell(whole)
        return await in_thread_if(num_written > LIGHT, lambda: json_response(whole))

    def events(self, first: PromptOutput, outputs: Outputs) -> AsyncGenerator[bytes, None]:
        """Not used: bodies with `stream` are refused."""
        raise AssertionError("several chats are answered whole")

    def _joined(self, answers: list[ChatResponse]) -> ChatResponse:
        """Return one answer with the choice of each."""
        whole = answers[0]
        whole.created = self._created
        whole.prompt_token_ids = UNSET
        whole.usage = summed([answer.usage for answer in answers])
        for index, answer in enumerate(answers[1:], start=1):
            (choice,) = answer.choices
            choice.index = index
            whole.choices.append(choice)
        return whole


def summed(usages: list[Usage]) -> Usage:
    """Return the sum of some counts, with the details that they have."""
    prompt = sum(usage.prompt_tokens for usage in usages)
    completion = sum(usage.completion_tokens for usage in usages)
    total = Usage(prompt, completion, prompt + completion)
    cached = [usage.prompt_tokens_details for usage in usages if usage.prompt_tokens_details is not UNSET]
    if cached:
        total.prompt_tokens_details = PromptTokensDetails(sum(details.cached_tokens for details in cached))
    reasoned = [usage.completion_tokens_details for usage in usages if usage.completion_tokens_details is not UNSET]
    if reasoned:
        total.completion_tokens_details = CompletionTokensDetails(sum(details.reasoning_tokens for details in reasoned))
    return total
