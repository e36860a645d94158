"""POST /sleep and /wake_up, GET /is_sleeping, if the engine may sleep. Owns: their answers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from core_apis.body import json_response
from core_apis.context import context_of
from core_apis.engine_state import holders_of, state_of
from core_apis.protocol.operation import SleepingAnswer, StatusAnswer
from core_apis.query import check_names, level_of, mode_of
from core_apis.server.disconnect import waited_for

router = APIRouter(tags=["operation"])


@router.post("/sleep")
async def sleep(request: Request, level: str = "1", mode: str = "abort") -> Response:
    """Release the memory of weights and cache until /wake_up; new requests wait.

    level: 1 stores the prepared weights in a file, 2 reads them from the checkpoint again.
    mode: for current requests: `abort` ends them, `wait` lets them end first, `keep` continues them later.
    """
    check_names(request, "level", "mode")
    wanted = mode_of(mode)
    sleeping = context_of(request).engine.control.sleep(level_of(level), wanted)
    await waited_for(wanted, request.receive, sleeping)
    return json_response(StatusAnswer("asleep"))


@router.post("/wake_up")
async def wake_up(request: Request, tags: Annotated[list[str] | None, Query()] = None) -> Response:
    """Restore memory: all of it, or only the part that `tags` name, `weights` or `kv_cache`."""
    check_names(request, often="tags")
    control = context_of(request).engine.control
    await control.wake_up(tags or None)
    return json_response(StatusAnswer("asleep" if await control.is_sleeping() else "awake"))


@router.get("/is_sleeping")
async def is_sleeping(request: Request) -> Response:
    """Return whether some of the memory is released; who holds requests, since when, and what ends that."""
    engine = context_of(request).engine
    is_sleeping = await engine.control.is_sleeping()
    return json_response(SleepingAnswer(is_sleeping, state_of(engine), holders_of(engine)))
