"""POST /drain_engine, /undrain_engine, /rebalance_engines and /scale_elastic_ep.

Owns: their answers. Never does: move a request (the group of engines does). Called by: the application.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from core.api.errors import RequestError
from core_apis.body import json_response
from core_apis.context import context_of
from core_apis.protocol.operation import ScaleRequest, ScalingAnswer, StatusAnswer
from core_apis.query import check_names, flag_of, number_of
from core_apis.routes.weights import decoded_body
from core_frontend.group.orders import Orders

router = APIRouter(tags=["operation"])

LONGEST_DRAIN_S = 86_400.0
"""Longest time for requests of an engine that is to go to end where they are."""


@router.post("/drain_engine")
async def drain_engine(request: Request, engine: str = "", end: str = "false") -> Response:
    """Send an engine of the group no further request, and have those that it runs go on in the others.

    engine: its number, as /health tells it. end: whether its process ends when its requests have left it. Answers when they
        have. 409 where no other engine takes requests.
    """
    check_names(request, "engine", "end")
    ends = flag_of("end", end)
    return json_response(await _orders(request).drain(number_of("engine", engine), ends=ends))


@router.post("/undrain_engine")
async def undrain_engine(request: Request, engine: str = "") -> Response:
    """Let an engine of the group take requests again; one that was ended is started. engine: its number."""
    check_names(request, "engine")
    await _orders(request).undrain(number_of("engine", engine))
    return json_response(StatusAnswer("running"))


@router.post("/rebalance_engines")
async def rebalance_engines(request: Request) -> Response:
    """Have running requests change engines until all engines have as many, such as after /undrain_engine."""
    check_names(request)
    return json_response(await _orders(request).rebalance())


@router.post("/scale_elastic_ep")
async def scale_elastic_ep(request: Request) -> Response:
    """Have as many engines from now on; answers when those that were to come serve, and those that were to go have ended.

    Those that go take no further request at once. What they run may end there for `drain_timeout` seconds, then it goes on in
    others. 409 while the number is being changed already; 503 where an engine does not come up, and nothing has changed.
    """
    check_names(request)
    body = await decoded_body(request, ScaleRequest)
    if not 0 <= body.drain_timeout <= LONGEST_DRAIN_S:
        raise RequestError(
            f"drain_timeout is {body.drain_timeout:g}; expected 0 to {LONGEST_DRAIN_S:g} seconds.",
            param="drain_timeout",
        )
    return json_response(await _orders(request).scale(body.new_data_parallel_size, body.drain_timeout))


@router.get("/is_scaling_elastic_ep")
@router.post("/is_scaling_elastic_ep")
async def is_scaling_elastic_ep(request: Request) -> Response:
    """Return whether the number of engines is being changed."""
    check_names(request)
    return json_response(ScalingAnswer(await _orders(request).is_scaling()))


def _orders(request: Request) -> Orders:
    moves = context_of(request).engine.moves
    if moves is None:
        raise RequestError("One engine serves, which no other one can relieve.", status=409, code="last_engine")
    return moves.orders
