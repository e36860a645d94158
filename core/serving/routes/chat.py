"""/v1/chat/completions: answer a conversation, read a stream again.

Owns: the order of these steps. Never does: format choices (`chat_writer` does).
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from core.serving.answer_stream import ShownPrompts, num_entries, written
from core.serving.answering import stream_answer
from core.serving.body import json_response
from core.serving.chat_writer import ChatWriter
from core.serving.context import context_of, response_id, user_of
from core.serving.disconnect import until_disconnect
from core.serving.durable.resuming import read_again, resumed
from core.serving.explaining import wants_explanation
from core.serving.generation import final_output, run_prompts
from core.serving.intake import intake

router = APIRouter(tags=["generation"])

PATH = "/v1/chat/completions"


@router.post(PATH)
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation."""
    rest = await resumed(request, "chat")
    if rest is not None:
        return rest
    context = context_of(request)
    async with intake(request, context.preparer.chat) as (prepared, arrival):
        body = prepared.body
        body.explain = wants_explanation(body.explain, request.headers)
        model = prepared.model
        answer_id = response_id(request, "chatcmpl", body.request_id)
        if body.stream:
            return await stream_answer(request, prepared, answer_id, arrival)
        user = user_of(request, body.user)
        outputs = run_prompts(context, prepared, answer_id, user, arrival)
        writer = ChatWriter(context, prepared)
        final = await until_disconnect(request.receive, final_output(outputs))
        num_new = num_entries(final) + ShownPrompts(body).num_new(0, final)
        return await written(final, lambda: json_response(writer.whole(final, answer_id, model)), num_new)


@router.get(PATH + "/{answer_id}")
async def read_chat_completion(request: Request, answer_id: str) -> Response:
    """The events of a kept stream."""
    return await read_again(request, "chat", answer_id)
