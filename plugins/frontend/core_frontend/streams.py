"""The streams of outputs that users of one engine read.

Owns: `RequestStreams`, one queue for each request that is being read. Never does: abort requests, or make outputs.
Called by: `AsyncEngine`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from core.api.errors import CoreError, EngineDeadError, RequestError
from core_frontend.api.outputs import RequestOutput


class RequestStream:
    """The outputs of one request, read by one consumer."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[RequestOutput | CoreError] = asyncio.Queue()

    def put(self, item: RequestOutput | CoreError) -> None:
        """Add the next output, or the error that ends the stream."""
        self._queue.put_nowait(item)

    async def next(self) -> RequestOutput:
        """Return the next output; after one with `finished` there is none.

        Raises the error that ends it, such as EngineDeadError.
        """
        item = await self._queue.get()
        if isinstance(item, CoreError):
            raise item
        return item


class RequestStreams:
    """The open streams, by request id."""

    def __init__(self) -> None:
        self._streams: dict[str, RequestStream] = {}

    @contextmanager
    def open(self, request_id: str) -> Iterator[RequestStream]:
        """Open a stream, and close it at the end of the context. Raises RequestError if the id is in use."""
        if request_id in self._streams:
            raise RequestError(f"The request id {request_id!r} is in use; choose another.", param="request_id")
        stream = self._streams[request_id] = RequestStream()
        try:
            yield stream
        finally:
            del self._streams[request_id]

    def names(self) -> list[str]:
        """Return the ids of the requests that are being read."""
        return list(self._streams)

    def deliver(self, outputs: Iterable[RequestOutput]) -> None:
        """Put outputs into their streams; outputs of requests without a stream are dropped."""
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None:
                stream.put(output)

    def fail(self, request_id: str, error: CoreError) -> None:
        """End one stream, if it is open, with an error."""
        stream = self._streams.get(request_id)
        if stream is not None:
            stream.put(error)

    def end(self, error: EngineDeadError) -> None:
        """End every stream with this error."""
        for stream in self._streams.values():
            stream.put(error)
