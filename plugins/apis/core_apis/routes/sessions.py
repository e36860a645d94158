"""/v1/sessions: list sessions, look at one, fork, rewind and delete it.

Owns: their checks and answers. Never does: keep sessions (`core_apis.sessions` does); requests begin and extend them.
"""

from __future__ import annotations

import time
from typing import TypeVar

import msgspec
from fastapi import APIRouter, Request, Response

from core.api.errors import RequestError
from core_apis.body import json_response, read_body
from core_apis.context import context_of, tenant_of
from core_apis.protocol.decoding import decode_body
from core_apis.protocol.sessions import (
    DeletedSession,
    ForkRequest,
    RewindRequest,
    SessionAnswer,
    SessionList,
    TurnAnswer,
)
from core_apis.sessions.store import Session

router = APIRouter(tags=["generation"])

PATH = "/v1/sessions"
T = TypeVar("T")


@router.get(PATH)
async def list_sessions(request: Request) -> Response:
    """List the sessions of the request's key."""
    sessions = context_of(request).sessions.of(tenant_of(request))
    return json_response(SessionList([_shown(session) for session in sessions.values()]))


@router.get(PATH + "/{name}")
async def get_session(request: Request, name: str) -> Response:
    """Return a session with its turns."""
    return json_response(_shown(context_of(request).sessions.get(tenant_of(request), name)))


@router.post(PATH + "/{name}/fork")
async def fork_session(request: Request, name: str) -> Response:
    """Copy a session under another name, with the turns that have ended."""
    body = await _body(request, ForkRequest)
    return json_response(_shown(context_of(request).sessions.fork(tenant_of(request), name, body.name)))


@router.post(PATH + "/{name}/rewind")
async def rewind_session(request: Request, name: str) -> Response:
    """Drop the turns after a number of them."""
    body = await _body(request, RewindRequest)
    return json_response(_shown(context_of(request).sessions.rewind(tenant_of(request), name, body.turn)))


@router.post(PATH + "/{name}/pin")
async def pin_session(request: Request, name: str) -> Response:
    """Refuse: no cached prefix is held for a session."""
    raise RequestError(
        "pin is not served: a session keeps tokens, and their KV is evicted like any other. Give the cache more room with "
        "--kv-offloading-size.",
        param="pin",
    )


@router.delete(PATH + "/{name}")
async def delete_session(request: Request, name: str) -> Response:
    """Delete a session. Requests that run in it go on."""
    context_of(request).sessions.remove(tenant_of(request), name)
    return json_response(DeletedSession(name))


def _shown(session: Session) -> SessionAnswer:
    turns = [TurnAnswer(turn.num_prompt, turn.num_tokens - turn.num_prompt, turn.kept) for turn in session.turns]
    return SessionAnswer(
        id=session.name,
        created=session.created,
        unused=round(time.monotonic() - session.used, 3),
        running=session.running,
        tokens=session.turns[-1].num_tokens if session.turns else 0,
        bytes=session.num_bytes,
        turns=turns,
    )


async def _body(request: Request, form: type[T]) -> T:
    """Decode the body. Raises RequestError."""
    with context_of(request).bodies.body() as body:
        data = b"".join(await read_body(request, body))
    return decode_body(msgspec.json.Decoder(form), data)
