"""POST /start_profile and /stop_profile, if a profiler is configured. Owns: their answers."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from core_apis.body import json_response
from core_apis.context import context_of
from core_apis.protocol.operation import ProfileAnswer

router = APIRouter(tags=["operation"])


@router.post("/start_profile")
async def start_profile(request: Request) -> Response:
    """Record the engine's steps from now on. 409 if they are being recorded already."""
    directory = await context_of(request).engine.profile("start_profile")
    return json_response(ProfileAnswer(directory))


@router.post("/stop_profile")
async def stop_profile(request: Request) -> Response:
    """Write the trace; the answer comes once it is written. 409 if nothing is being recorded."""
    path = await context_of(request).engine.profile("stop_profile")
    return json_response(ProfileAnswer(path))
