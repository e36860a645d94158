"""POST /v1/completions. Owns: the order of its steps. Never does: format choices (`completion_writer` does)."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from fastapi import APIRouter, Request, Response

from core.api.errors import RequestError
from core.serving.body import json_response, read_body
from core.serving.completion_writer import CompletionWriter
from core.serving.context import ServingContext, context_of, response_id, user_of
from core.serving.disconnect import until_disconnect
from core.serving.event_stream import EventStream
from core.serving.generation import Prompt, PromptOutput, run_prompts
from core.serving.prompts import text_prompt
from core.serving.protocol.completions import CompletionChoice, CompletionRequest, CompletionResponse

MAX_CHOICES = 4096

router = APIRouter(tags=["generation"])

_decoder = msgspec.json.Decoder(CompletionRequest)
_encode = msgspec.json.Encoder().encode


@router.post("/v1/completions")
async def create_completion(request: Request) -> Response:
    """Continue one or several prompts."""
    context = context_of(request)
    body = await read_body(request, _decoder)
    head = CompletionResponse(
        id=response_id(request, "cmpl", body.request_id),
        object="text_completion",
        created=int(time.time()),
        model=context.check_model(body.model),
        choices=[],
    )
    body.check()
    params = body.params(context.defaults)
    prompts = await _prompts(context, body)
    outputs = run_prompts(context, body, prompts, params, head.id, user_of(request, body.user))
    writer = CompletionWriter(context, body, prompts)
    if not body.stream:
        return json_response(await until_disconnect(request.receive, _whole(outputs, writer, head)))
    first = await until_disconnect(request.receive, anext(outputs))
    return EventStream(_events(context, body, first, outputs, writer, head))


async def _prompts(context: ServingContext, body: CompletionRequest) -> list[Prompt]:
    given = body.prompts()
    choices = len(given) * (body.n or 1)
    if choices > MAX_CHOICES:
        raise RequestError(
            f"{len(given)} prompts with n={body.n or 1} make {choices} choices; at most {MAX_CHOICES} fit one request.",
            param="prompt",
        )
    add_special_tokens = body.add_special_tokens is not False
    return [
        await text_prompt(context, prompt, add_special_tokens) if isinstance(prompt, str) else Prompt(None, prompt)
        for prompt in given
    ]


async def _whole(
    outputs: AsyncGenerator[PromptOutput, None], writer: CompletionWriter, head: CompletionResponse
) -> CompletionResponse:
    choices: list[CompletionChoice] = []
    async with aclosing(outputs):
        async for prompt_index, output in outputs:
            choices += writer.choices(prompt_index, output)
    head.choices = sorted(choices, key=lambda choice: choice.index)
    head.usage = writer.usage.usage()
    return head


async def _events(
    context: ServingContext,
    body: CompletionRequest,
    first: PromptOutput,
    outputs: AsyncGenerator[PromptOutput, None],
    writer: CompletionWriter,
    head: CompletionResponse,
) -> AsyncGenerator[bytes, None]:
    forced = context.server.enable_force_include_usage
    continuous = body.continuous_usage(forced=forced)
    async with aclosing(outputs):
        item: PromptOutput | None = first
        while item is not None:
            for choice in writer.choices(*item):
                if not (choice.text or choice.finish_reason or choice.logprobs or body.return_token_ids):
                    continue
                head.choices = [choice]
                if continuous:
                    head.usage = writer.usage.usage()
                yield b"data: " + _encode(head) + b"\n\n"
            item = await anext(outputs, None)
    if body.include_usage(forced=forced):
        head.choices = []
        head.usage = writer.usage.usage()
        yield b"data: " + _encode(head) + b"\n\n"
