"""GET /health, GET and POST /ping, GET /version. Owns: their answers."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from core.version import __version__
from core_apis.body import json_response
from core_apis.context import context_of
from core_apis.engine_state import holders_of, state_of
from core_apis.protocol.operation import EngineDeath, HealthAnswer, VersionAnswer

router = APIRouter(tags=["operation"])


@router.get("/health")
@router.get("/ping")
@router.post("/ping")
async def health(request: Request) -> Response:
    """Report 200 while the engine makes progress, or is being restarted after its death; else 503.

    A 503 says that the engine is gone, since when it has been silent, or that the server is shutting down. Never takes
    long.

    An engine that is paused, sleeps or takes new weights is healthy: 200, so that no supervisor ends it. The body says
    so, with the holder of requests, since when, and what ends the hold. It also reports when the journal cannot be
    written.
    """
    context = context_of(request)
    await context.engine.check_health()
    context.drain.check()
    restarts = context.engine.restarts
    problem = None if context.durable is None else context.durable.journal.problem
    answer = HealthAnswer(
        state=state_of(context.engine),
        engine_restarts=restarts.num_restarts.total(),
        last_deaths=[EngineDeath(death.time, death.cause) for death in restarts.latest],
        holders=holders_of(context.engine),
    )
    if engines := context.engine.engines:
        answer.engines = list(engines)
    if problem is not None:
        answer.journal = f"The request journal takes no requests now: {problem}."
    return json_response(answer)


@router.get("/version")
async def version(request: Request) -> Response:
    """Return the version of the engine, and of its weights once they were replaced."""
    return json_response(VersionAnswer(__version__, context_of(request).weight_version))
