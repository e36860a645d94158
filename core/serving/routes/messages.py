"""POST /v1/messages and /v1/messages/count_tokens. Owns: the order of their steps. Never does: write events (the writer
does)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from fastapi import APIRouter, Request, Response

from core.api.outputs import RequestOutput
from core.serving.answer_stream import written
from core.serving.anthropic.writer import MessagesWriter, event_bytes
from core.serving.body import json_response
from core.serving.context import context_of, user_of
from core.serving.disconnect import until_disconnect
from core.serving.errors import messages_error_event
from core.serving.event_stream import EventStream
from core.serving.explaining import wants_explanation
from core.serving.generation import final_output, run_prompts
from core.serving.intake import intake
from core.serving.middleware import request_id_of
from core.serving.prompt_output import PromptOutput

router = APIRouter(tags=["messages"])


@router.post("/v1/messages")
async def create_message(request: Request) -> Response:
    """Answer a conversation."""
    context = context_of(request)
    request_id = request_id_of(request.scope)
    headers = {"request-id": request_id}
    async with intake(request, context.preparer.messages) as (prepared, arrival):
        context.tolerated.tell(request.url.path, prepared.unknown)
        body = prepared.chat.body
        body.explain = wants_explanation(body.explain, request.headers)
        user = user_of(request, body.user)
        answer_id = f"msg_{request_id}"
        outputs = run_prompts(context, prepared.chat, answer_id, user, arrival)
        writer = MessagesWriter(prepared, answer_id)
        if not body.stream:
            final = await until_disconnect(request.receive, final_output(outputs))
            answer = await written(final, lambda: json_response(writer.whole(final)))
            answer.headers.update(headers)
            return answer
        first = await until_disconnect(request.receive, anext(outputs))
        events = _events(writer, first, outputs)
        return EventStream(events, done=b"", failed=messages_error_event, headers=headers)


@router.post("/v1/messages/count_tokens")
async def count_tokens(request: Request) -> Response:
    """The tokens that the prompt of the same request would have."""
    context = context_of(request)
    async with intake(request, context.preparer.count_tokens) as (counted, _):
        context.tolerated.tell(request.url.path, counted.unknown)
        answer = json_response(counted.count)
        answer.headers["request-id"] = request_id_of(request.scope)
        return answer


def _news(writer: MessagesWriter, output: RequestOutput) -> bytes:
    return b"".join(event_bytes(event) for event in writer.news(output))


async def _events(
    writer: MessagesWriter, first: PromptOutput, outputs: AsyncGenerator[PromptOutput, None]
) -> AsyncGenerator[bytes, None]:
    async with aclosing(outputs):
        yield event_bytes(writer.opening(first[1]))
        item: PromptOutput | None = first
        while item is not None:
            events = await written(item[1], partial(_news, writer, item[1]))
            if events:
                yield events
            item = await anext(outputs, None)
