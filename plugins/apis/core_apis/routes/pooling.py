"""/v1/embeddings, /v2/embed, /pooling, /classify, /score and /rerank: vectors and classes of texts, and numbers made of them.

Owns: their rows and paths. Never does: write answers (`pooling_answers` does).
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request, Response

from core_apis.exchange import Exchange, id_with
from core_apis.pipeline import answered
from core_apis.pooling.answers import (
    classify_answer,
    embed_answer,
    embedding_answer,
    pooling_answer,
    rerank_answer,
    score_answer,
)
from core_apis.pooling.writer import Write, pooled_by

router = APIRouter(tags=["pooling"])


def _row(kind: str, prefix: str, write: Write, **options: Any) -> Exchange:
    return Exchange(kind=kind, identify=id_with(prefix), answer=pooled_by(write, **options))


EMBEDDING: Final = _row("embedding", "embd", embedding_answer)
EMBED_1: Final = _row("embed", "embd", embed_answer, api_version="1")
EMBED_2: Final = _row("embed", "embd", embed_answer, api_version="2")
POOLING: Final = _row("pooling", "pool", pooling_answer)
CLASSIFY: Final = _row("classify", "classify", classify_answer)
SCORE: Final = _row("score", "score", score_answer)
RERANK: Final = _row("rerank", "rerank", rerank_answer)
RERANK_1: Final = _row("rerank", "rerank", rerank_answer, api_version="1")
RERANK_2: Final = _row("rerank", "rerank", rerank_answer, api_version="2")


@router.post("/v1/embeddings")
async def create_embedding(request: Request) -> Response:
    """Embed texts: one vector per text."""
    return await answered(request, EMBEDDING)


@router.post("/v2/embed")
async def embed(request: Request) -> Response:
    """Embed texts in the shape of Cohere's API."""
    return await answered(request, EMBED_2)


@router.post("/v1/embed")
async def embed_v1(request: Request) -> Response:
    """Embed texts under the path of the first version of Cohere's API."""
    return await answered(request, EMBED_1)


@router.post("/pooling")
async def pool(request: Request) -> Response:
    """Pool texts: one vector per text, or one per token; or the classes of either."""
    return await answered(request, POOLING)


@router.post("/classify")
@router.post("/v1/classify")
async def classify(request: Request) -> Response:
    """Classify texts."""
    return await answered(request, CLASSIFY)


@router.post("/score")
@router.post("/v1/score")
async def score(request: Request) -> Response:
    """Score how well the texts of each pair match."""
    return await answered(request, SCORE)


@router.post("/rerank")
async def rerank(request: Request) -> Response:
    """Rank documents by how well they match a query."""
    return await answered(request, RERANK)


@router.post("/v1/rerank")
async def rerank_v1(request: Request) -> Response:
    """Rank documents under the path of Jina's API, and of the first version of Cohere's."""
    return await answered(request, RERANK_1)


@router.post("/v2/rerank")
async def rerank_v2(request: Request) -> Response:
    """Rank documents under the path of the second version of Cohere's API."""
    return await answered(request, RERANK_2)
