"""/v1/batches: begin a batch of requests from a file, list batches, look at one, cancel it.

Owns: their checks and answers. Never does: run a batch (`core_apis.batches` does).
"""

from __future__ import annotations

import asyncio
import time

import msgspec
from fastapi import APIRouter, Request, Response

from core.api.errors import RequestError, nearest
from core_apis.batches.line import SERVED
from core_apis.batches.store import new_id, pages
from core_apis.body import SHORT_BODY, json_response, read_body
from core_apis.context import batches_of, context_of
from core_apis.durable.resuming import number_of
from core_apis.protocol.batches import BatchList, BatchObject, CreateBatch
from core_apis.protocol.decoding import decode_body
from core_apis.query import check_names
from core_apis.routes.files import disk_error, no_file

router = APIRouter(tags=["batches"])

PATH = "/v1/batches"
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
LONGEST_WINDOW_S = 30 * 86400
MOST_LISTED = 100


@router.post(PATH)
async def create_batch(request: Request) -> Response:
    """Begin a batch. It is validated afterwards: one whose file has a problem ends as `failed`, with the problems."""
    context = context_of(request)
    context.drain.check()
    with context.bodies.body(SHORT_BODY) as body:
        data = b"".join(await read_body(request, body))
    wanted = decode_body(msgspec.json.Decoder(CreateBatch), data)
    if wanted.endpoint not in SERVED:
        raise RequestError(
            f"endpoint is {wanted.endpoint[:64]!r}; expected one of {', '.join(SERVED)}.{nearest(wanted.endpoint, SERVED)}",
            param="endpoint",
        )
    seconds = int(wanted.completion_window[:-1]) * UNITS[wanted.completion_window[-1]]
    if seconds > LONGEST_WINDOW_S:
        raise RequestError("completion_window is longer than 30d.", param="completion_window")
    store, owner = batches_of(request)
    file = await asyncio.to_thread(store.file, owner, wanted.input_file_id)
    if file is None:
        raise no_file(wanted.input_file_id)
    if file.purpose != "batch":
        raise RequestError(
            f"The file '{file.id}' has the purpose '{file.purpose}'; expected 'batch'.", param="input_file_id"
        )
    created = int(time.time())
    batch = BatchObject(
        id=new_id("batch_"),
        endpoint=wanted.endpoint,
        input_file_id=file.id,
        completion_window=wanted.completion_window,
        status="validating",
        created_at=created,
        expires_at=created + seconds,
        metadata=wanted.metadata,
    )
    try:
        await asyncio.to_thread(store.add_batch, owner, batch)
    except OSError as error:
        raise disk_error(error) from error
    if context.batches is not None:
        context.batches.begin()
    return json_response(batch)


@router.get(PATH)
async def list_batches(request: Request) -> Response:
    """List the batches of the request's key, the newest first."""
    check_names(request, "after", "limit")
    store, owner = batches_of(request)
    batches = await asyncio.to_thread(store.batches, owner)
    limit = number_of(request, "limit", 20, least=1, most=MOST_LISTED)
    page = list(pages(batches, request.query_params.get("after"), limit))
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    return json_response(BatchList(page, first, last, bool(page) and page[-1] is not batches[-1]))


@router.get(PATH + "/{batch_id}")
async def retrieve_batch(request: Request, batch_id: str) -> Response:
    """Return a batch as it is now."""
    return json_response(await _batch(request, batch_id))


@router.post(PATH + "/{batch_id}/cancel")
async def cancel_batch(request: Request, batch_id: str) -> Response:
    """Cancel a batch; the results that it has become its files. One that has ended is left as it is."""
    batch = await _batch(request, batch_id)
    store, owner = batches_of(request)
    if not batch.has_ended:
        try:
            await asyncio.to_thread(store.cancel, owner, batch.id)
        except OSError as error:
            raise disk_error(error) from error
        batch = await _batch(request, batch_id)
    return json_response(batch)


async def _batch(request: Request, batch_id: str) -> BatchObject:
    store, owner = batches_of(request)
    batch = await asyncio.to_thread(store.batch, owner, batch_id)
    if batch is None:
        raise RequestError(
            f"There is no batch '{batch_id[:64]}'.", param="batch_id", status=404, code="batch_not_found"
        )
    return batch
