"""POST /v1/chat/completions. Owns: the order of its steps. Never does: format choices (`chat_writer` does)."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request, Response

from core.serving.answer_stream import AnswerStream, written
from core.serving.body import json_response
from core.serving.chat_writer import ChatWriter
from core.serving.context import context_of, response_id, user_of
from core.serving.disconnect import until_disconnect
from core.serving.event_stream import EventStream
from core.serving.explaining import wants_explanation
from core.serving.generation import final_output, run_prompts
from core.serving.intake import intake
from core.serving.protocol.chat import ChatChunk

router = APIRouter(tags=["generation"])


@router.post("/v1/chat/completions")
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation."""
    context = context_of(request)
    async with intake(request, context.preparer.chat) as (prepared, arrival):
        body = prepared.body
        body.explain = wants_explanation(body.explain, request.headers)
        model = prepared.model
        answer_id = response_id(request, "chatcmpl", body.request_id)
        user = user_of(request, body.user)
        outputs = run_prompts(context, prepared, answer_id, user, arrival)
        writer = ChatWriter(context, prepared)
        if not body.stream:
            final = await until_disconnect(request.receive, final_output(outputs))
            return await written(final, lambda: json_response(writer.whole(final, answer_id, model)))
        first = await until_disconnect(request.receive, anext(outputs))
        chunk = ChatChunk(
            id=answer_id,
            object="chat.completion.chunk",
            created=int(time.time()),
            model=model,
            choices=[],
        )
        stream = AnswerStream(context, body, first, outputs)
        return EventStream(stream.events(chunk, writer))
