"""POST /tokenize and /detokenize. Owns: the routes. Never does: the work (`core_apis.text_bodies` does)."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from core_apis.body import written_response
from core_apis.context import context_of, tenant_of
from core_apis.intake import intake

router = APIRouter(tags=["tokens"])


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    """Return the token ids of a prompt or of a rendered conversation."""
    return await _written(request, "tokenize")


@router.post("/detokenize")
async def detokenize(request: Request) -> Response:
    """Return the text of token ids, special tokens included."""
    return await _written(request, "detokenize")


async def _written(request: Request, kind: str) -> Response:
    """Return an answer that needs no engine, serialized by its preparation."""
    context = context_of(request)
    async with intake(context, request, tenant_of(request), partial(context.preparer.prepare, kind)) as (answer, _):
        return written_response(answer.body)
