"""/v1/completions: continue prompts, read a stream again.

Owns: the order of these steps. Never does: format choices (`completion_writer` does).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from fastapi import APIRouter, Request, Response

from core.serving.answer_stream import LIGHT, OUTPUT_COST, ShownPrompts, in_thread_if, num_entries, written
from core.serving.answering import stream_answer
from core.serving.body import json_response
from core.serving.completion_writer import CompletionWriter
from core.serving.context import context_of, response_id, user_of
from core.serving.disconnect import until_disconnect
from core.serving.durable.resuming import read_again, resumed
from core.serving.explaining import wants_explanation
from core.serving.extras import Extras
from core.serving.generation import run_prompts
from core.serving.intake import intake
from core.serving.prompt_output import PromptOutput
from core.serving.protocol.completions import CompletionChoice, CompletionResponse

router = APIRouter(tags=["generation"])

PATH = "/v1/completions"


@router.post(PATH)
async def create_completion(request: Request) -> Response:
    """Continue one or several prompts."""
    rest = await resumed(request, "completion")
    if rest is not None:
        return rest
    context = context_of(request)
    async with intake(request, context.preparer.completion) as (prepared, arrival):
        body = prepared.body
        body.explain = wants_explanation(body.explain, request.headers)
        answer_id = response_id(request, "cmpl", body.request_id)
        if body.stream:
            return await stream_answer(request, prepared, answer_id, arrival)
        head = CompletionResponse(
            id=answer_id,
            object="text_completion",
            created=int(time.time()),
            model=prepared.model,
            choices=[],
        )
        user = user_of(request, body.user)
        outputs = run_prompts(context, prepared, head.id, user, arrival)
        writer = CompletionWriter(context, body, prepared.prompts)
        num_written = await until_disconnect(request.receive, _fill(head, outputs, writer))
        head.system_fingerprint = context.weight_version
        return await in_thread_if(num_written > LIGHT, lambda: json_response(head))


@router.get(PATH + "/{answer_id}")
async def read_completion(request: Request, answer_id: str) -> Response:
    """The events of a kept stream."""
    return await read_again(request, "completion", answer_id)


async def _fill(head: CompletionResponse, outputs: AsyncGenerator[PromptOutput, None], writer: CompletionWriter) -> int:
    """Put the choices of all outputs into the answer; how many tokens and log-probabilities they have.

    Outputs of several prompts may all be there at once: others have their turn between them.
    """
    num_written = cost = 0
    shown = ShownPrompts(writer.request)
    choices: list[CompletionChoice] = []
    extras = Extras(writer.request)
    async with aclosing(outputs):
        async for prompt_index, output in outputs:
            extras.add(prompt_index, output)
            num_new = num_entries(output) + shown.num_new(prompt_index, output)
            choices += await written(output, partial(writer.choices, prompt_index, output), num_new)
            num_written += num_new
            cost += OUTPUT_COST + num_new
            if cost > LIGHT:
                await asyncio.sleep(0)
                cost = 0
    await in_thread_if(num_written > LIGHT, writer.free)
    head.choices = sorted(choices, key=lambda choice: choice.index)
    head.usage = writer.usage.usage()
    extras.tell(head)
    return num_written
