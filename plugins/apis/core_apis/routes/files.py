"""/v1/files: upload a file for a batch, list files, read and delete one.

Owns: their checks and answers. Never does: keep files (`core_apis.batches` does).
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import BinaryIO

from fastapi import APIRouter, Request, Response
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse

from core.api.errors import RequestError
from core_apis.batches.store import BatchStore, new_id, pages
from core_apis.body import json_response
from core_apis.context import batches_of, context_of
from core_apis.durable.resuming import number_of
from core_apis.errors import ClientGone
from core_apis.forms import Form, FormReader
from core_apis.protocol.batches import DeletedFile, FileList, FileObject
from core_apis.query import check_names

router = APIRouter(tags=["batches"])

PATH = "/v1/files"
FLUSH = 1 << 20
ROOM_EVERY = 4
"""Bytes of an upload that are written at once, and after how many writes the room is looked at again."""
MOST_LISTED = 10_000
LONGEST_NAME = 255
LONGEST_LIFE_S = 30 * 24 * 3600
FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")


class Draft:
    """A file while it is uploaded."""

    def __init__(self, store: BatchStore, owner: str, path: Path, file: BinaryIO) -> None:
        self.path = path
        self.size = 0
        self._store = store
        self._owner = owner
        self._file = file
        self._buffer = bytearray()
        self._num_flushes = 0

    async def take(self, data: bytes) -> None:
        """Append bytes. Raises RequestError (413) if the owner's files take too much, OSError."""
        self._buffer += data
        self.size += len(data)
        if len(self._buffer) >= FLUSH:
            await self.flush()

    async def flush(self, *, last: bool = False) -> None:
        """Write what has come. last: nothing comes any more."""
        data, self._buffer = bytes(self._buffer), bytearray()
        await asyncio.to_thread(self._write, data, last)

    def _write(self, data: bytes, last: bool) -> None:
        self._file.write(data)
        self._file.flush()
        self._num_flushes += 1
        if (last or self._num_flushes % ROOM_EVERY == 0) and self._store.room(self._owner) < 0:
            most = self._store.settings.max_bytes
            raise RequestError(
                f"The files of this API key would take more than {most} bytes (--batch-directory-size); delete some.",
                status=413,
                code="no_room_for_file",
            )


@router.post(PATH)
async def create_file(request: Request) -> Response:
    """Upload a file as multipart/form-data, with the parts `file` and `purpose`."""
    context_of(request).drain.check()
    store, owner = batches_of(request)
    reader = FormReader(request.headers.get("content-type", ""))
    try:
        path, file = await asyncio.to_thread(store.draft, owner)
        try:
            with file:
                draft = Draft(store, owner, path, file)
                async for piece in request.stream():
                    await draft.take(reader.write(piece))
                record = _record(reader.end(), draft.size)
                await draft.flush(last=True)
            await asyncio.to_thread(store.keep, owner, path, record)
        finally:
            await asyncio.to_thread(path.unlink, missing_ok=True)
    except ClientDisconnect:
        raise ClientGone("The client closed the connection in the middle of its upload.") from None
    except OSError as error:
        raise disk_error(error) from error
    return json_response(record)


@router.get(PATH)
async def list_files(request: Request) -> Response:
    """List the files of the request's key, the newest first unless the query says otherwise."""
    check_names(request, "after", "limit", "order", "purpose")
    query = request.query_params
    order, purpose = query.get("order", "desc"), query.get("purpose")
    if order not in ("asc", "desc"):
        raise RequestError(f"order is {order!r}; expected 'asc' or 'desc'.", param="order")
    store, owner = batches_of(request)
    files = [each for each in await asyncio.to_thread(store.files, owner) if purpose in (None, each.purpose)]
    if order == "asc":
        files.reverse()
    limit = number_of(request, "limit", MOST_LISTED, least=1, most=MOST_LISTED)
    page = list(pages(files, query.get("after"), limit))
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    return json_response(FileList(page, first, last, bool(page) and page[-1] is not files[-1]))


@router.get(PATH + "/{file_id}")
async def retrieve_file(request: Request, file_id: str) -> Response:
    """Return the record of a file."""
    return json_response(await _file(request, file_id))


@router.get(PATH + "/{file_id}/content")
async def file_content(request: Request, file_id: str) -> Response:
    """Return the bytes of a file."""
    record = await _file(request, file_id)
    store, owner = batches_of(request)
    path = store.path(owner, record.id, ".data")
    try:
        status = await asyncio.to_thread(path.stat)
    except OSError:
        raise no_file(file_id) from None
    return FileResponse(path, media_type="application/octet-stream", stat_result=status)


@router.delete(PATH + "/{file_id}")
async def delete_file(request: Request, file_id: str) -> Response:
    """Delete a file. A batch that has begun to read it goes on; one that has not fails."""
    record = await _file(request, file_id)
    store, owner = batches_of(request)
    await asyncio.to_thread(store.remove_file, owner, record.id)
    return json_response(DeletedFile(record.id))


async def _file(request: Request, file_id: str) -> FileObject:
    store, owner = batches_of(request)
    record = await asyncio.to_thread(store.file, owner, file_id)
    if record is None:
        raise no_file(file_id)
    return record


def _record(form: Form, size: int) -> FileObject:
    """Return the record of an uploaded file. Raises RequestError."""
    for name in form.fields:
        if name not in FIELDS:
            raise RequestError(
                f"{name[:64]!r} is no field of a file; expected file, {', '.join(FIELDS)}.", param=name[:64]
            )
    if form.filename is None:
        raise RequestError("The body has no file; send it as the part 'file'.", param="file")
    purpose = form.one("purpose")
    if purpose != "batch":
        raise RequestError(f"purpose is {purpose[:64]!r}; expected 'batch'.", param="purpose")
    created = int(time.time())
    expires = None
    if "expires_after[seconds]" in form.fields:
        seconds = form.one("expires_after[seconds]")
        if not (seconds.isascii() and seconds.isdigit() and len(seconds) < 10 and 0 < int(seconds) <= LONGEST_LIFE_S):
            raise RequestError(
                f"expires_after[seconds] is {seconds[:64]!r}; expected 1 to {LONGEST_LIFE_S}.", param="expires_after"
            )
        expires = created + int(seconds)
    name = "".join(each for each in form.filename if each.isprintable())[:LONGEST_NAME]
    return FileObject(
        id=new_id("file-"), bytes=size, created_at=created, filename=name or "file", purpose="batch", expires_at=expires
    )


def no_file(file_id: str) -> RequestError:
    """Return the error for an id that is no file of the request's key."""
    return RequestError(f"There is no file '{file_id[:64]}'.", param="file_id", status=404, code="file_not_found")


def disk_error(error: OSError) -> RequestError:
    """Return the error for a directory that cannot be written."""
    return RequestError(
        f"The server cannot write to its directory of batches: {error.strerror or 'unknown error'}. Try again later.",
        status=503,
        code="batch_directory_unavailable",
        retry_after=60,
    )
