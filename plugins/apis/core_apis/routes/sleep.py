"""POST /sleep and /wake_up, GET /is_sleeping, where the engine may sleep. Owns: their answers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from core_apis.body import json_response
from core_apis.context import context_of
from core_apis.disconnect import waited_for
from core_apis.engine_state import holders_of, state_of
from core_apis.protocol.operation import SleepingAnswer, StatusAnswer
from core_apis.query import check_names, level_of, mode_of

router = APIRouter(tags=["operation"])


@router.post("/sleep")
async def sleep(request: Request, level: str = "1", mode: str = "abort") -> Response:
    """Give the memory of weights and cache back until /wake_up; requests that come wait.

    level: 1 keeps the prepared weights in a file, 2 reads them from the checkpoint again.
    mode: of requests that are there: `abort` ends them, `wait` lets them end first, `keep` has them go on later.
    """
    check_names(request, "level", "mode")
    wanted = mode_of(mode)
    sleeping = context_of(request).engine.control.sleep(level_of(level), wanted)
    await waited_for(wanted, request.receive, sleeping)
    return json_response(StatusAnswer("asleep"))


@router.post("/wake_up")
async def wake_up(request: Request, tags: Annotated[list[str] | None, Query()] = None) -> Response:
    """Bring memory back: all of it, or that which `tags` name, `weights` or `kv_cache`."""
    check_names(request, often="tags")
    control = context_of(request).engine.control
    await control.wake_up(tags or None)
    return json_response(StatusAnswer("asleep" if await control.is_sleeping() else "awake"))


@router.get("/is_sleeping")
async def is_sleeping(request: Request) -> Response:
    """Whether some of the memory is not there; who holds requests, since when, and what ends that."""
    engine = context_of(request).engine
    is_sleeping = await engine.control.is_sleeping()
    return json_response(SleepingAnswer(is_sleeping, state_of(engine), holders_of(engine)))
