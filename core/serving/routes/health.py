"""GET /health, GET and POST /ping, GET /version. Owns: their answers."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from core.serving.body import json_response
from core.serving.context import context_of
from core.serving.protocol.operation import HealthAnswer, VersionAnswer
from core.version import __version__

router = APIRouter(tags=["operation"])


@router.get("/health")
@router.get("/ping")
@router.post("/ping")
async def health(request: Request) -> Response:
    """200 while the engine runs and moves, else 503: it is gone, or since when it has been silent. Never takes long.

    A journal that cannot be written is told in the body.
    """
    context = context_of(request)
    await context.engine.check_health()
    problem = None if context.durable is None else context.durable.journal.problem
    if problem is not None:
        return json_response(HealthAnswer(f"The request journal takes no requests now: {problem}."))
    return Response(status_code=200)


@router.get("/version")
async def version(request: Request) -> Response:
    """The version of the engine."""
    return json_response(VersionAnswer(__version__))
