"""POST /pause and /resume, GET /is_paused. Owns: their answers. Never does: know what a pause is (the engine does)."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from core_apis.body import json_response
from core_apis.context import context_of
from core_apis.engine_state import holders_of, state_of
from core_apis.protocol.operation import PausedAnswer, StatusAnswer
from core_apis.query import check_names, flag_of, mode_of
from core_apis.server.disconnect import waited_for

router = APIRouter(tags=["operation"])


@router.post("/pause")
async def pause(
    request: Request, mode: str = "abort", clear_cache: str = "true", wait_for_inflight_requests: str = "false"
) -> Response:
    """Pause the engine until /resume; new requests wait. mode: what happens to current requests, see /sleep.

    If the client disconnects while the call waits for them, the pause is undone.
    """
    check_names(request, "mode", "clear_cache", "wait_for_inflight_requests")
    waits = flag_of("wait_for_inflight_requests", wait_for_inflight_requests)
    wanted = "wait" if waits else mode_of(mode)
    clears = flag_of("clear_cache", clear_cache)
    pausing = context_of(request).engine.control.pause(wanted, clear_cache=clears)
    await waited_for(wanted, request.receive, pausing)
    return json_response(StatusAnswer("paused"))


@router.post("/resume")
async def resume(request: Request) -> Response:
    """End a pause; waiting requests run."""
    check_names(request)
    await context_of(request).engine.control.resume()
    return json_response(StatusAnswer("resumed"))


@router.get("/is_paused")
async def is_paused(request: Request) -> Response:
    """Return whether a pause was requested that has not ended; who holds requests, since when, and what ends that."""
    engine = context_of(request).engine
    is_paused = await engine.control.is_paused()
    return json_response(PausedAnswer(is_paused, state_of(engine), holders_of(engine)))
