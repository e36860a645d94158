"""GET /health, GET and POST /ping, GET /version. Owns: their answers."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from core.serving.body import json_response
from core.serving.context import context_of
from core.serving.protocol.operation import EngineDeath, HealthAnswer, VersionAnswer
from core.version import __version__

router = APIRouter(tags=["operation"])


@router.get("/health")
@router.get("/ping")
@router.post("/ping")
async def health(request: Request) -> Response:
    """200 while the engine runs and moves, or is being started again after its death; else 503: it is gone, or since when
    it has been silent. Never takes long."""
    engine = context_of(request).engine
    await engine.check_health()
    restarts = engine.restarts
    answer = HealthAnswer(
        state="serving" if restarts.paused_since is None else "recovering",
        engine_restarts=restarts.num_restarts.total(),
        last_deaths=[EngineDeath(death.time, death.cause) for death in restarts.latest],
    )
    return json_response(answer)


@router.get("/version")
async def version(request: Request) -> Response:
    """The version of the engine."""
    return json_response(VersionAnswer(__version__))
