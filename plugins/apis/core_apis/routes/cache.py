"""POST /reset_prefix_cache, /reset_mm_cache, /reset_encoder_cache. Owns: their answers."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from core.api.errors import RequestError
from core_apis.body import json_response
from core_apis.context import context_of
from core_apis.protocol.operation import ResetAnswer
from core_apis.query import flag_of
from core_media.config import media_of

router = APIRouter(tags=["operation"])


@router.post("/reset_prefix_cache")
async def reset_prefix_cache(request: Request, reset_running_requests: str = "false") -> Response:
    """Drop all cached prefixes, also from host memory and disk. 409, and no change, while requests run.

    reset_running_requests: whether running requests are restarted first, with the tokens that they have; then there is
        no 409.
    """
    restart = flag_of("reset_running_requests", reset_running_requests)
    if not await context_of(request).engine.reset_prefix_cache(restart=restart):
        raise RequestError(
            "The prefix cache is in use by requests that run, so it was not reset; try again when they have ended, or "
            "have them start over with ?reset_running_requests=true.",
            status=409,
            code="prefix_cache_in_use",
        )
    return json_response(ResetAnswer(reset=True))


@router.post("/reset_mm_cache")
async def reset_mm_cache(request: Request) -> Response:
    """Drop the processed pictures and sounds that this API process keeps for later requests."""
    await context_of(request).preparer.forget_media()
    return json_response(ResetAnswer(reset=True))


@router.post("/reset_encoder_cache")
async def reset_encoder_cache(request: Request) -> Response:
    """Drop the rows of pictures and sounds that the engine keeps for later prompts."""
    context = context_of(request)
    if media_of(context.engine.config) is not None:
        await context.engine.control.call("reset_encoder_cache")
    return json_response(ResetAnswer(reset=True))
