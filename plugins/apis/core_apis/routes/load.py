"""GET /load. Owns: its answer."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from core_apis.body import json_response
from core_apis.context import context_of
from core_apis.protocol.operation import LoadAnswer

router = APIRouter(tags=["operation"])


@router.get("/load")
async def load(request: Request) -> Response:
    """Return the load of this process, for a balancer that spreads requests over servers."""
    return json_response(LoadAnswer(context_of(request).engine.num_live))
