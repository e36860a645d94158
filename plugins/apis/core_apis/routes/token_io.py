"""POST /inference/v1/generate, and the paths that render requests to token ids and read token ids as answers.

Owns: the row and the paths. Never does: render, tokenize or parse (`core_apis.token_io` does).
"""

from __future__ import annotations

import time
from functools import partial
from typing import Final
from uuid import uuid4

from fastapi import APIRouter, Request, Response

from core_apis.answers.chat_writer import ChatAnswer
from core_apis.answers.completion_writer import CompletionAnswer
from core_apis.answers.prompt_output import Outputs
from core_apis.body import written_response
from core_apis.context import context_of, tenant_of
from core_apis.exchange import Exchange
from core_apis.intake import intake
from core_apis.pipeline import answered
from core_apis.server.middleware import client_request_id
from core_apis.token_io.bodies import PreparedTokens, ReadChat, ReadCompletion
from core_apis.token_io.writer import TokenAnswer, output_of
from core_frontend.api.outputs import RequestOutput

router = APIRouter(tags=["token ids"])


def _request_id(request: Request, prepared: PreparedTokens) -> str:
    """Return the id of an answer: the request's, without a prefix, as the client looks for it."""
    return prepared.body.request_id or client_request_id(request.headers) or uuid4().hex


TOKENS: Final = Exchange(kind="tokens", identify=_request_id, answer=TokenAnswer)
EXCHANGES: Final = (TOKENS,)


@router.post("/inference/v1/generate")
async def generate(request: Request) -> Response:
    """Continue token ids, and answer with token ids."""
    return await answered(request, TOKENS)


@router.post("/v1/chat/completions/render")
async def render_chat(request: Request) -> Response:
    """Return a chat as the body of /inference/v1/generate that it stands for."""
    return await _rendered(request, "chat render")


@router.post("/v1/completions/render")
async def render_completion(request: Request) -> Response:
    """Return a completion as bodies of /inference/v1/generate, one for each prompt."""
    return await _rendered(request, "completion render")


@router.post("/v1/chat/completions/derender")
async def derender_chat(request: Request) -> Response:
    """Read what /inference/v1/generate answered as the answer of the chat that was rendered."""
    context = context_of(request)
    tokenizer = context.engine.tokenizer
    owner = context.tenants.name(tenant_of(request))
    prepare = partial(context.preparer.prepare, "chat read", owner=owner)
    async with intake(context, request, tenant_of(request), prepare) as (read, _):
        assert isinstance(read, ReadChat)
        chat, given = read.chat, read.given
        answer = ChatAnswer(context, chat, f"chatcmpl-{given.request_id or uuid4().hex}", given.created or _now())
        output = output_of(given, chat.prompts[0], chat.params, tokenizer, marks_specials=chat.format is not None)
        return await answer.whole(_outputs([output]))


@router.post("/v1/completions/derender")
async def derender_completion(request: Request) -> Response:
    """Read what /inference/v1/generate answered as the answers of the prompts of the completion that was rendered."""
    context = context_of(request)
    tokenizer = context.engine.tokenizer
    prepare = partial(context.preparer.prepare, "completion read")
    async with intake(context, request, tenant_of(request), prepare) as (read, _):
        assert isinstance(read, ReadCompletion)
        prepared, first = read.completion, read.given[0]
        outputs: list[RequestOutput] = []
        for given, prompt in zip(read.given, prepared.prompts, strict=True):
            outputs.append(output_of(given, prompt, prepared.params, tokenizer, marks_specials=False))
        answer_id = f"cmpl-{first.request_id or uuid4().hex}"
        return await CompletionAnswer(context, prepared, answer_id, first.created or _now()).whole(_outputs(outputs))


async def _rendered(request: Request, kind: str) -> Response:
    context = context_of(request)
    async with intake(context, request, tenant_of(request), partial(context.preparer.prepare, kind)) as (answer, _):
        return written_response(answer.body)


async def _outputs(outputs: list[RequestOutput]) -> Outputs:
    for item in enumerate(outputs):
        yield item


def _now() -> int:
    return int(time.time())
