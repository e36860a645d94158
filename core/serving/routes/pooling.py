"""/v1/embeddings, /pooling, /score and /rerank: vectors of texts, and numbers made of them.

Owns: the order of these steps. Never does: write answers (`pooling_answers` does).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from core.api.pooling_outputs import PooledOutput, PoolingRequestOutput
from core.serving.body import json_response
from core.serving.context import context_of, response_id, user_of
from core.serving.disconnect import until_disconnect
from core.serving.generation import run_prompts
from core.serving.intake import intake
from core.serving.pooling_answers import embedding_answer, pooling_answer, rerank_answer, score_answer
from core.serving.prepared import PreparedPooling
from core.serving.prompt_output import PromptOutput

router = APIRouter(tags=["pooling"])

Prepare = Callable[[bytearray], Coroutine[Any, Any, PreparedPooling]]
Write = Callable[[Any, list[PoolingRequestOutput], str, str], msgspec.Struct]


@router.post("/v1/embeddings")
async def create_embedding(request: Request) -> Response:
    """One vector a text."""
    return await _answer(request, context_of(request).preparer.embedding, "embd", embedding_answer)


@router.post("/pooling")
async def pool(request: Request) -> Response:
    """One vector a text, or one a token."""
    return await _answer(request, context_of(request).preparer.pooling, "pool", pooling_answer)


@router.post("/score")
@router.post("/v1/score")
async def score(request: Request) -> Response:
    """How near the texts of each pair are."""
    return await _answer(request, context_of(request).preparer.score, "score", score_answer)


@router.post("/rerank")
@router.post("/v1/rerank")
@router.post("/v2/rerank")
async def rerank(request: Request) -> Response:
    """Documents by how near they are to a query."""
    return await _answer(request, context_of(request).preparer.rerank, "rerank", rerank_answer)


async def _answer(request: Request, prepare: Prepare, prefix: str, write: Write) -> Response:
    context = context_of(request)
    async with intake(request, prepare) as (prepared, arrival):
        body = prepared.body
        answer_id = response_id(request, prefix, body.request_id)
        outputs = run_prompts(context, prepared, answer_id, user_of(request, body.user), arrival)
        whole = await until_disconnect(request.receive, _all(outputs))
        return json_response(write(body, whole, answer_id, prepared.model))


async def _all(outputs: AsyncGenerator[PromptOutput, None]) -> list[PoolingRequestOutput]:
    """In the order of the texts."""
    found: dict[int, PoolingRequestOutput] = {}
    async with aclosing(outputs):
        async for index, output in outputs:
            assert isinstance(output, PooledOutput), "a text that is pooled has one output"
            found[index] = output.whole()
    return [found[index] for index in sorted(found)]
