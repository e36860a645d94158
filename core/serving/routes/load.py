"""GET /load. Owns: its answer."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from core.serving.body import json_response
from core.serving.context import context_of
from core.serving.protocol.operation import LoadAnswer

router = APIRouter(tags=["operation"])


@router.get("/load")
async def load(request: Request) -> Response:
    """How much this process has to do, for whoever spreads requests over servers."""
    return json_response(LoadAnswer(context_of(request).engine.num_live))
