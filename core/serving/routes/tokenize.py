"""POST /tokenize and /detokenize. Owns: the routes. Never does: the work (`core.serving.preparation` does)."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from core.serving.body import written_response
from core.serving.context import context_of
from core.serving.intake import intake

router = APIRouter(tags=["tokens"])


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    """Token ids of a prompt or of a rendered conversation."""
    async with intake(request, context_of(request).preparer.tokenize) as (answer, _):
        return written_response(answer.body)


@router.post("/detokenize")
async def detokenize(request: Request) -> Response:
    """Text of token ids, special tokens included."""
    async with intake(request, context_of(request).preparer.detokenize) as (answer, _):
        return written_response(answer.body)
