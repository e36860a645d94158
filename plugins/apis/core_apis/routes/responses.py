"""/v1/responses: make a response, look it up, read its stream again, cancel it, delete it.

Owns: the order of these steps. Never does: write items or events, or store anything (`core_apis.responses` does).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from uuid import uuid4

import msgspec
from fastapi import APIRouter, Request, Response

from core.api.errors import RequestError
from core_apis.answers.event_stream import EventStream
from core_apis.answers.stream import LIGHT, in_thread_if
from core_apis.body import BODY_PIECE, json_response, written_response
from core_apis.callers.tenant import Tenant
from core_apis.context import ServingContext, context_of, tenant_of
from core_apis.durable.event_ids import last_event_id
from core_apis.durable.resuming import number_of
from core_apis.durable.sureness import first_after
from core_apis.generation import PromptRun
from core_apis.intake import intake
from core_apis.pipeline import Call, note_fields
from core_apis.prepare.prepared import PreparedResponse
from core_apis.protocol.response_objects import DeletedResponse, ItemList
from core_apis.protocol.responses import Reference
from core_apis.responses.continuing import check_hosted
from core_apis.responses.kept_items import HOSTED_MARK, mentions_items, packed, referred
from core_apis.responses.making import response_run
from core_apis.responses.run import ResponseRun
from core_apis.responses.store import not_found
from core_apis.responses.stored_response import StoredResponse
from core_apis.server.disconnect import until_disconnect
from core_apis.sessions.joining import join_session
from core_apis.tools.rounds import MOST_BODY, HostedRounds, RepeatedBody

router = APIRouter(tags=["generation"])

PATH = "/v1/responses"
DEFAULT_ITEMS = 20
MOST_ITEMS = 100
"""Maximum number of items on a page."""


@router.post(PATH)
async def create_response(request: Request) -> Response:
    """Answer a conversation, at once or in the background."""
    context = context_of(request)
    tenant = tenant_of(request)
    repeated = RepeatedBody()
    prepare = partial(prepare_response_of, context, tenant, repeated=repeated)
    async with intake(context, request, tenant, prepare) as (prepared, arrival):
        call = Call(context, request, tenant, prepared, arrival)
        note_fields(call)
        session = await join_session(context, tenant, request.headers, prepared)
        body = prepared.body
        if prepared.hosted:
            check_hosted(prepared.chat.body)
            if session is not None:
                raise RequestError(
                    "A session's turn is one run of the model, and a response with tools of type 'mcp' has several; leave "
                    "one of them out.",
                    param="session",
                )
        _check_storing(context, tenant, prepared)
        response_id = f"resp_{uuid4().hex}"
        created = int(time.time())
        lasts = body.stored and bool(body.background or body.stream)
        # A response whose tools run here ends with this server: a call that was begun cannot be begun again by the next.
        run = await context.pipeline.run(call, "response", response_id, created, lasts=lasts and not prepared.hosted)
        run.session = session
        rounds = None
        if prepared.hosted and context.tools is not None:
            rounds = HostedRounds(context, context.tools, prepared, run, repeated)
        response = response_run(
            context, tenant, prepared, response_id, run, run.outputs, created=created, rounds=rounds
        )
        if lasts and body.background:
            await run.accepted()  # what is to outlive the server is on disk before the client hears of it
            response.start()
            if not body.stream:
                return json_response(response.writer.response)
        elif response.is_kept_apart:
            _, first = await run.first(request.receive)
            response.start(first)
        else:
            return await _answer(request, run, response, streams=bool(body.stream))
        assert response.entry is not None and response.entry.log is not None
        return EventStream(response.entry.log.follow(0), done=b"")


@router.get(PATH + "/{response_id}")
async def retrieve_response(request: Request, response_id: str) -> Response:
    """Return a stored response, or its events from a number on."""
    entry = _kept(request, response_id)
    if not _flag(request, "stream"):
        return written_response(entry.body())
    if entry.log is None:
        raise RequestError(
            f"The response '{response_id}' has no events: it was not made with stream: true. Leave stream out.",
            param="stream",
        )
    return EventStream(entry.log.follow(await _start(request, entry)), done=b"")


@router.delete(PATH + "/{response_id}")
async def delete_response(request: Request, response_id: str) -> Response:
    """Delete a response; its run is ended."""
    entry = _kept(request, response_id)
    await _end(entry)
    if not context_of(request).responses.remove(entry):  # another DELETE came first
        raise not_found(response_id)
    return json_response(DeletedResponse(response_id))


@router.post(PATH + "/{response_id}/cancel")
async def cancel_response(request: Request, response_id: str) -> Response:
    """Cancel a response in the background. One that has ended is left as it is."""
    entry = _kept(request, response_id)
    if entry.task is None and not entry.background:
        raise RequestError(
            f"The response '{response_id}' was not made in the background; it ends when its connection is closed.",
            param="response_id",
        )
    await _end(entry)
    return Response(entry.body(), media_type="application/json")


@router.get(PATH + "/{response_id}/input_items")
async def list_input_items(request: Request, response_id: str) -> Response:
    """List a page of the items that a response was made from, last one first unless the query says otherwise."""
    entry = _kept(request, response_id)
    items = list(context_of(request).responses.input_of(entry))
    order = request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise RequestError(f"order is {order!r}; expected 'asc' or 'desc'.", param="order")
    if order == "desc":
        items.reverse()
    limit = number_of(request, "limit", DEFAULT_ITEMS, least=1, most=MOST_ITEMS)
    after = request.query_params.get("after")
    names = [item.id for item in items]
    start = 0
    if after is not None:
        if after not in names:
            raise RequestError(f"after is {after!r}, which is no item of this response.", param="after")
        start = names.index(after) + 1
    page = [msgspec.Raw(item.data) for item in items[start : start + limit]]
    shown = names[start : start + limit]
    first, last = (shown[0], shown[-1]) if shown else ("", "")
    return json_response(ItemList(page, first, last, start + limit < len(items)))


async def prepare_response_of(
    context: ServingContext, tenant: Tenant, *pieces: bytearray, repeated: RepeatedBody | None = None
) -> PreparedResponse:
    """Return the prepared body, with the stored items that it names. repeated: keeps it, if its tools run here."""
    reference = await _reference(context, pieces)
    previous = reference.previous_response_id
    history = None if previous is None else context.responses.history(tenant, previous)
    known = context.responses.items(tenant, referred(reference))
    servers = context.tools.offered if context.tools is not None and _may_name_servers(pieces) else []
    kept = packed(history, known, servers)
    most = context.server.limits.max_body_size
    if len(kept) > most:
        raise RequestError(
            f"The conversation before this request is larger than {most} bytes (--max-body-size); begin a new one.",
            param="previous_response_id",
            status=413,
            code="body_too_large",
        )
    prepared: PreparedResponse = await context.preparer.prepare("response", kept, *pieces)
    if prepared.hosted and repeated is not None:
        repeated.keep(pieces, history, known, servers)
    return prepared


def _may_name_servers(pieces: Sequence[bytearray]) -> bool:
    """Return whether a body may have tools of tool servers. A larger body than these may have is not searched."""
    whole = b"".join(pieces) if sum(map(len, pieces)) <= MOST_BODY else b""
    return HOSTED_MARK in whole or not whole


async def _reference(context: ServingContext, pieces: Sequence[bytearray]) -> Reference:
    """Return the references of a body to stored items."""
    before = bytearray()
    for piece in pieces:
        if mentions_items(before, piece):
            reference: Reference = await context.preparer.prepare("references", *pieces)
            return reference
        before = piece
        if len(piece) >= BODY_PIECE:
            await asyncio.sleep(0)  # other connections get their turn: all pieces of 32 MB take 13 ms
    return Reference()


def _check_storing(context: ServingContext, tenant: Tenant, prepared: PreparedResponse) -> None:
    """Raise RequestError for an answer that is to be stored, but cannot be."""
    body = prepared.body
    if not context.responses.keeps:
        if body.store or body.background:
            name = "store" if body.store else "background"
            raise RequestError(
                f"{name} is true, but this server keeps no responses (--max-stored-responses 0, or several API "
                "processes); leave it out.",
                param=name,
            )
        body.store = False
    if body.background:
        context.responses.check_background(tenant)


async def _answer(request: Request, run: PromptRun, response: ResponseRun, *, streams: bool) -> Response:
    """Return an answer that ends with its connection."""
    if not streams:
        body = await until_disconnect(request.receive, response.whole())
        return await in_thread_if(response.num_written > LIGHT, partial(json_response, body))
    _, first = await run.first(request.receive)
    return EventStream(response.events(first), done=b"")


async def _start(request: Request, entry: StoredResponse) -> int:
    """Return the number of the first event that a client wants. Raises RequestError."""
    streams = context_of(request).durable
    last = None if streams is None else last_event_id(request)
    if streams is None or last is None or "starting_after" in request.query_params:
        return number_of(request, "starting_after", -1, least=-1) + 1
    return await first_after(last, entry.id, streams.journal.epoch, entry.sure)


def _kept(request: Request, response_id: str) -> StoredResponse:
    return context_of(request).responses.get(tenant_of(request), response_id)


async def _end(entry: StoredResponse) -> None:
    """End the work on a response, if it has not ended."""
    task = entry.task
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _flag(request: Request, name: str) -> bool:
    given = request.query_params.get(name, "false").lower()
    if given not in ("true", "false"):
        raise RequestError(f"{name} is {given!r}; expected true or false.", param=name)
    return given == "true"
