"""GET /health, GET and POST /ping, GET /ready and /readyz, GET /live, GET /version. Owns: their answers."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from msgspec import UNSET

from core.version import __version__
from core_apis.body import json_response
from core_apis.context import ServingContext, context_of
from core_apis.engine_state import check_ready, check_recovered, holders_of, state_of
from core_apis.protocol.operation import EngineDeath, HealthAnswer, VersionAnswer
from core_observers.families.audit_metrics import num_mismatches

MADE_UP = "bench"
"""The KV connector whose blocks no model computed."""

router = APIRouter(tags=["operation"])


@router.get("/health")
@router.get("/ping")
@router.post("/ping")
async def health(request: Request) -> Response:
    """Report 200 while there is an engine that can compute; else 503.

    A 503 says that the engine is gone or is being restarted after its death, since when it has been silent, or that the
    server is shutting down. Never takes long.

    An engine that is paused, sleeps or takes new weights is healthy: 200. The body says so, with the holder of requests,
    since when, and what ends the hold. It also reports when the journal cannot be written.
    """
    context = context_of(request)
    answer = await _alive(context)
    check_recovered(context.engine)
    return json_response(answer)


@router.get("/live")
async def live(request: Request) -> Response:
    """Report 200 while the server must not be restarted: as `/health`, and also while another engine is started.

    For liveness probes: a restart of the server would end the streams that wait for the next engine. A 503 says that
    the engine is gone for good, since when it has been silent or starting, or that the server is shutting down.
    """
    return json_response(await _alive(context_of(request)))


@router.get("/ready")
@router.get("/readyz")
async def ready(request: Request) -> Response:
    """Report 200 while a request that comes now is computed; else 503, which says what it would wait for.

    For load balancers, which then choose another server. A supervisor should ask /live instead: a server that is not
    ready may still have streams that go on.
    """
    context = context_of(request)
    answer = await _alive(context)
    check_ready(context.engine)
    return json_response(answer)


async def _alive(context: ServingContext) -> HealthAnswer:
    """Return the answer of a server whose streams go on. Raises what its 503 says."""
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
    answer.audit_mismatches = num_mismatches(context.engine.stats.audits) or UNSET
    if MADE_UP in context.engine.config.plugins.kv_connectors:
        answer.made_up = "The KV connector bench makes up keys and values of prompts; no answer means anything."
    if problem is not None:
        answer.journal = f"The request journal takes no requests now: {problem}."
    return answer


@router.get("/version")
async def version(request: Request) -> Response:
    """Return the version of the engine, and of its weights once they were replaced."""
    return json_response(VersionAnswer(__version__, context_of(request).weight_version))
