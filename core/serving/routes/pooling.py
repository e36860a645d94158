"""/v1/embeddings, /v2/embed, /pooling, /classify, /score and /rerank: vectors and classes of texts, and numbers made of them.

Owns: the order of these steps. Never does: write answers (`pooling_answers` does).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from core.api.pooling_outputs import PooledOutput, WholeOutput
from core.serving.body import PiecesResponse
from core.serving.context import context_of, response_id, user_of
from core.serving.disconnect import until_disconnect
from core.serving.generation import run_prompts
from core.serving.intake import intake
from core.serving.json_pieces import JsonPieces
from core.serving.pooling_answers import (
    classify_answer,
    embed_answer,
    embedding_answer,
    num_entries,
    pooling_answer,
    rerank_answer,
    score_answer,
)
from core.serving.prepared import PreparedPooling
from core.serving.prompt_output import PromptOutput

router = APIRouter(tags=["pooling"])

Prepare = Callable[[bytearray], Coroutine[Any, Any, PreparedPooling]]
Write = Callable[[Any, list[WholeOutput], str, JsonPieces], msgspec.Struct | Response]

LIGHT = 8192
"""Numbers and tokens that are written on the event loop, in some 2 ms."""


@router.post("/v1/embeddings")
async def create_embedding(request: Request) -> Response:
    """One vector a text."""
    return await _answer(request, context_of(request).preparer.embedding, "embd", embedding_answer)


@router.post("/v2/embed")
async def embed(request: Request) -> Response:
    """The same in the shape of Cohere's API."""
    return await _answer(request, context_of(request).preparer.embed, "embd", partial(embed_answer, api_version="2"))


@router.post("/v1/embed")
async def embed_v1(request: Request) -> Response:
    """The same under the path of the first version of Cohere's API."""
    return await _answer(request, context_of(request).preparer.embed, "embd", partial(embed_answer, api_version="1"))


@router.post("/pooling")
async def pool(request: Request) -> Response:
    """One vector a text, or one a token; the classes of either."""
    return await _answer(request, context_of(request).preparer.pooling, "pool", pooling_answer)


@router.post("/classify")
@router.post("/v1/classify")
async def classify(request: Request) -> Response:
    """The classes of texts."""
    return await _answer(request, context_of(request).preparer.classify, "classify", classify_answer)


@router.post("/score")
@router.post("/v1/score")
async def score(request: Request) -> Response:
    """How well the texts of each pair match."""
    return await _answer(request, context_of(request).preparer.score, "score", score_answer)


@router.post("/rerank")
async def rerank(request: Request) -> Response:
    """Documents by how well they match a query."""
    return await _answer(request, context_of(request).preparer.rerank, "rerank", rerank_answer)


@router.post("/v1/rerank")
async def rerank_v1(request: Request) -> Response:
    """The same under the path of Jina's API, and of the first version of Cohere's."""
    return await _answer(
        request, context_of(request).preparer.rerank, "rerank", partial(rerank_answer, api_version="1")
    )


@router.post("/v2/rerank")
async def rerank_v2(request: Request) -> Response:
    """The same under the path of the second version of Cohere's API."""
    return await _answer(
        request, context_of(request).preparer.rerank, "rerank", partial(rerank_answer, api_version="2")
    )


async def _answer(request: Request, prepare: Prepare, prefix: str, write: Write) -> Response:
    context = context_of(request)
    async with intake(request, prepare) as (prepared, arrival):
        body = prepared.body
        answer_id = response_id(request, prefix, body.request_id)
        outputs = run_prompts(context, prepared, answer_id, user_of(request, body.user), arrival)
        whole = await until_disconnect(request.receive, _all(outputs))
        work = partial(_written, write, prepared, whole, answer_id)
        return work() if num_entries(whole) <= LIGHT else await asyncio.to_thread(work)


def _written(write: Write, prepared: PreparedPooling, outputs: list[WholeOutput], answer_id: str) -> Response:
    lists = JsonPieces()
    answer = write(prepared, outputs, answer_id, lists)
    return answer if isinstance(answer, Response) else PiecesResponse(lists.body(answer))


async def _all(outputs: AsyncGenerator[PromptOutput, None]) -> list[WholeOutput]:
    """In the order of the texts."""
    found: dict[int, WholeOutput] = {}
    async with aclosing(outputs):
        async for index, output in outputs:
            assert isinstance(output, PooledOutput), "a text that is pooled has one output"
            found[index] = output.whole()
    return [found[index] for index in sorted(found)]
