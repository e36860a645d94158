"""/v1/sessions: list sessions, look at one, fork, rewind, pin and delete it.

Owns: their checks and answers. Never does: keep sessions (`core_apis.sessions` does); requests begin and extend them.
"""

from __future__ import annotations

import time
from typing import TypeVar

import msgspec
from fastapi import APIRouter, Request, Response

from core_apis.body import SHORT_BODY, json_response, read_body
from core_apis.context import context_of, tenant_of
from core_apis.protocol.decoding import decode_body
from core_apis.protocol.sessions import (
    DeletedSession,
    ForkRequest,
    PinRequest,
    RewindRequest,
    SessionAnswer,
    SessionList,
    TurnAnswer,
)
from core_apis.query import check_names
from core_apis.sessions.pins import Places
from core_apis.sessions.service import SessionService
from core_apis.sessions.store import Session

router = APIRouter(tags=["generation"])

PATH = "/v1/sessions"
T = TypeVar("T")


@router.get(PATH)
async def list_sessions(request: Request) -> Response:
    """List the sessions of the request's key."""
    check_names(request)
    sessions = await context_of(request).sessions.all(tenant_of(request))
    return json_response(SessionList([_shown(session) for session in sessions]))


@router.get(PATH + "/{name}")
async def get_session(request: Request, name: str) -> Response:
    """Return a session with its turns, and the places of its keys and values."""
    check_names(request)
    sessions = context_of(request).sessions
    return await _answer(sessions, await sessions.get(tenant_of(request), name))


@router.post(PATH + "/{name}/fork")
async def fork_session(request: Request, name: str) -> Response:
    """Copy a session under another name, with the turns that have ended."""
    check_names(request)
    body = await _body(request, ForkRequest)
    return json_response(_shown(await context_of(request).sessions.fork(tenant_of(request), name, body.name)))


@router.post(PATH + "/{name}/rewind")
async def rewind_session(request: Request, name: str) -> Response:
    """Drop the turns after a number of them."""
    check_names(request)
    body = await _body(request, RewindRequest)
    return json_response(_shown(await context_of(request).sessions.rewind(tenant_of(request), name, body.turn)))


@router.post(PATH + "/{name}/pin")
async def pin_session(request: Request, name: str) -> Response:
    """Keep a session's keys and values in the KV cache, now and after each turn, until it is unused for its lifetime."""
    await _check_nothing(request)
    sessions = context_of(request).sessions
    return await _answer(sessions, await sessions.pin(tenant_of(request), name))


@router.delete(PATH + "/{name}/pin")
async def unpin_session(request: Request, name: str) -> Response:
    """End a pin."""
    await _check_nothing(request)
    sessions = context_of(request).sessions
    return await _answer(sessions, await sessions.unpin(tenant_of(request), name))


@router.delete(PATH + "/{name}")
async def delete_session(request: Request, name: str) -> Response:
    """Delete a session. Requests that run in it go on."""
    await _check_nothing(request)
    await context_of(request).sessions.remove(tenant_of(request), name)
    return json_response(DeletedSession(name))


async def _answer(sessions: SessionService, session: Session) -> Response:
    """Show a session with its places."""
    return json_response(_shown(session, await sessions.pins.places(session)))


def _shown(session: Session, kv: Places | None = None) -> SessionAnswer:
    turns = [TurnAnswer(turn.num_prompt, turn.num_tokens - turn.num_prompt, turn.kept) for turn in session.turns]
    return SessionAnswer(
        id=session.name,
        created=session.created,
        unused=round(time.monotonic() - session.used, 3),
        running=session.running,
        tokens=session.turns[-1].num_tokens if session.turns else 0,
        bytes=session.num_bytes,
        turns=turns,
        pinned=session.pinned,
        kv_bytes=None if kv is None else kv.places,
        pinned_bytes=None if kv is None else kv.pinned,
        held_bytes=None if kv is None else kv.held,
    )


async def _check_nothing(request: Request) -> None:
    """Raise RequestError where a request without anything to choose says something: it would not be done."""
    check_names(request)
    if request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers:
        await _body(request, PinRequest)


async def _body(request: Request, form: type[T]) -> T:
    """Decode the body. Raises RequestError."""
    with context_of(request).bodies.body(SHORT_BODY) as body:
        data = b"".join(await read_body(request, body))
    return decode_body(msgspec.json.Decoder(form), data)
