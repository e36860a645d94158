"""POST /generative_scoring and /v1/generative_scoring: score items by the probability of a label.

Owns: the row and its paths. Never does: tokenize or compute (`core_apis.scoring` does).
"""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response

from core_apis.exchange import Exchange, id_with
from core_apis.pipeline import answered
from core_apis.scoring.bodies import KIND
from core_apis.scoring.writer import ScoringAnswer

router = APIRouter(tags=["generation"])

SCORING: Final = Exchange(kind=KIND, identify=id_with("generative-scoring"), answer=ScoringAnswer)
EXCHANGES: Final = (SCORING,)


@router.post("/generative_scoring")
@router.post("/v1/generative_scoring")
async def score(request: Request) -> Response:
    """Return for each item the probability that the first label token follows the query and the item."""
    return await answered(request, SCORING)
