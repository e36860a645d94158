"""POST /v1/chat/completions. Owns: the order of its steps. Never does: format choices (`chat_writer` does)."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from fastapi import APIRouter, Request, Response

from core.serving.body import json_response, read_body
from core.serving.chat_writer import ChatWriter
from core.serving.context import ServingContext, context_of, response_id, user_of
from core.serving.disconnect import until_disconnect
from core.serving.event_stream import EventStream
from core.serving.generation import PromptOutput, run_prompts
from core.serving.prompts import chat_prompt
from core.serving.protocol.chat import ChatChunk, ChatRequest, ChatResponse

router = APIRouter(tags=["generation"])

_decoder = msgspec.json.Decoder(ChatRequest)
_encode = msgspec.json.Encoder().encode


@router.post("/v1/chat/completions")
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation."""
    context = context_of(request)
    body = await read_body(request, _decoder)
    model = context.check_model(body.model)
    body.check(context.model.max_logprobs)
    params = body.params(context.defaults)
    prompt = await chat_prompt(context, body, bool(body.add_special_tokens))
    answer_id = response_id(request, "chatcmpl", body.request_id)
    outputs = run_prompts(context, body, [prompt], params, answer_id, user_of(request, body.user))
    writer = ChatWriter(context, body)
    if not body.stream:
        work = _whole(body, outputs, writer, answer_id, model)
        return json_response(await until_disconnect(request.receive, work))
    first = await until_disconnect(request.receive, anext(outputs))
    head = ChatChunk(answer_id, "chat.completion.chunk", int(time.time()), model, [])
    return EventStream(_events(context, body, first, outputs, writer, head))


async def _whole(
    body: ChatRequest, outputs: AsyncGenerator[PromptOutput, None], writer: ChatWriter, answer_id: str, model: str
) -> ChatResponse:
    async with aclosing(outputs):
        async for _, output in outputs:
            final = output
    choices = writer.choices(final)
    answer = ChatResponse(answer_id, "chat.completion", int(time.time()), model, choices, writer.usage.usage())
    if body.prompt_logprobs is not None and final.prompt_logprobs is not None:
        answer.prompt_logprobs = writer.logprobs.prompt(final.prompt_logprobs)
    if body.return_token_ids:
        answer.prompt_token_ids = final.prompt_token_ids
    return answer


async def _events(
    context: ServingContext,
    body: ChatRequest,
    first: PromptOutput,
    outputs: AsyncGenerator[PromptOutput, None],
    writer: ChatWriter,
    head: ChatChunk,
) -> AsyncGenerator[bytes, None]:
    forced = context.server.enable_force_include_usage
    continuous = body.continuous_usage(forced=forced)
    async with aclosing(outputs):
        if body.return_token_ids:
            head.prompt_token_ids = first[1].prompt_token_ids
        for choice in writer.opening():
            head.choices = [choice]
            yield b"data: " + _encode(head) + b"\n\n"
        head.prompt_token_ids = msgspec.UNSET
        item: PromptOutput | None = first
        while item is not None:
            for choice in writer.deltas(item[1]):
                head.choices = [choice]
                if continuous:
                    head.usage = writer.usage.usage()
                yield b"data: " + _encode(head) + b"\n\n"
            item = await anext(outputs, None)
    if body.include_usage(forced=forced):
        head.choices = []
        head.usage = writer.usage.usage()
        yield b"data: " + _encode(head) + b"\n\n"
