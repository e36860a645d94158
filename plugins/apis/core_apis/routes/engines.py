"""POST /drain_engine, /undrain_engine and /rebalance_engines.

Owns: their answers. Never does: move a request (the group of engines does). Called by: the application.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from core.api.errors import RequestError
from core_apis.body import json_response
from core_apis.context import context_of
from core_apis.protocol.operation import StatusAnswer
from core_apis.query import check_names, flag_of, number_of
from core_frontend.group.orders import Orders

router = APIRouter(tags=["operation"])


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


def _orders(request: Request) -> Orders:
    moves = context_of(request).engine.moves
    if moves is None:
        raise RequestError("One engine serves, which no other one can relieve.", status=409, code="last_engine")
    return moves.orders
