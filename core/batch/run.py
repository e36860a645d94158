"""Runs what a batch still lacks: a number of requests at once, in the file's order.

Owns: the workers, and requests that a busy server sends back. Never does: start an engine, or write the output.
Called by: `core run-batch`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import BinaryIO

import msgspec

from core.api.errors import EngineDeadError
from core.batch.batch_file import BatchFile, Place, open_input
from core.batch.line import Line
from core.batch.results import BatchError, BatchResponse, BatchResult, Results
from core.client.endpoint import Endpoint, EndpointError, whole

BUSY = (429, 503)
"""What a server answers that has no room now."""
MOST_TRIES = 1000
DEFAULT_WAIT_SECONDS = 1.0

Advance = Callable[[BatchResult], None]


class _Error(msgspec.Struct):
    """The part of an error object that counts here."""

    message: str = ""
    code: str | int | None = None


class _Body(msgspec.Struct):
    """The fields of any answer that count here."""

    id: str = ""
    error: _Error | None = None


async def run_batch(endpoint: Endpoint, batch: BatchFile, results: Results, at_once: int, advance: Advance) -> None:
    """Run all lines that have no result.

    at_once: requests that run at the same time.
    advance: called after each result.

    Raises OutputError, EngineDeadError; what is done until then is kept.
    """
    waiting = (place for place in batch.places if place.error is None and not results.has(place))
    with open_input(batch.path) as file:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(at_once):
                    group.create_task(_work(endpoint, batch, file, waiting, results, advance))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None  # the others were cancelled for it, or fail of the same


async def _work(
    endpoint: Endpoint, batch: BatchFile, file: BinaryIO, waiting: Iterator[Place], results: Results, advance: Advance
) -> None:
    """One request after the other, until none waits."""
    for place in waiting:
        line = batch.read(file, place)
        result = BatchResult(f"batch_req_{place.digest.hex()}", line.custom_id, None, None)
        try:
            result.response = await _answer(endpoint, line)
        except EndpointError as error:
            result.error = BatchError("no_answer", str(error), place.number)
        results.add(place, result)
        advance(result)


async def _answer(endpoint: Endpoint, line: Line) -> BatchResponse:
    """The answer to one line, asked again while the server is busy. Raises EngineDeadError."""
    for _ in range(MOST_TRIES):
        async with endpoint.ask("POST", line.url, bytes(line.body)) as answer:
            text = await whole(answer)
        body = msgspec.json.decode(text, type=_Body)
        if body.error is not None and body.error.code == "engine_dead":
            raise EngineDeadError(body.error.message)
        if answer.status not in BUSY:
            break
        await asyncio.sleep(float(answer.headers.get("retry-after", DEFAULT_WAIT_SECONDS)))
    return BatchResponse(answer.status, body.id, msgspec.Raw(text))
