"""POST /start_profile and /stop_profile, where a profiler is configured. Owns: their answers."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from core_apis.body import json_response
from core_apis.context import context_of
from core_apis.protocol.operation import ProfileAnswer

router = APIRouter(tags=["operation"])


@router.post("/start_profile")
async def start_profile(request: Request) -> Response:
    """Record the engine's steps from now on. 409 when they are recorded already."""
    directory = await context_of(request).engine.profile("start_profile")
    return json_response(ProfileAnswer(directory))


@router.post("/stop_profile")
async def stop_profile(request: Request) -> Response:
    """Write the trace; answers when it is written. 409 when nothing is recorded."""
    path = await context_of(request).engine.profile("stop_profile")
    return json_response(ProfileAnswer(path))
