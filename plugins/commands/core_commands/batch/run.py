"""Runs the missing requests of a batch, several at once, in file order.

Owns: the workers, retries while the server is busy, and the handling of interrupted answers. Never does: start an
engine, or write the output. Called by: `core run-batch`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, BinaryIO

import msgspec

from core.api.errors import CoreError, EngineDeadError
from core_apis.batches.batch_file import BatchFile, Place, open_input
from core_apis.batches.line import Line
from core_apis.batches.results import BatchError, BatchResponse, BatchResult
from core_commands.batch.results import Results
from core_commands.client.endpoint import Answer, Endpoint, EndpointError, whole
from core_commands.client.served_names import NoListError, served_names

BUSY = (429, 503)
"""Status codes of a server without free capacity."""
MOST_TRIES = 1000
DEFAULT_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 60.0
LONGEST_QUOTE = 200

Advance = Callable[[BatchResult], None]


class ServerGoneError(CoreError):
    """Raised when a server no longer accepts requests; the message names it."""


class _Body(msgspec.Struct):
    """The fields of an answer that are used here; other servers may put any type there."""

    id: Any = ""
    error: Any = None


async def run_batch(
    endpoint: Endpoint, batch: BatchFile, results: Results, at_once: int, advance: Advance, default_model: str = ""
) -> None:
    """Run all lines without a result.

    at_once: number of concurrent requests.
    advance: called after each result.
    default_model: for requests that name none; empty if none is needed.

    Raises OutputError, EngineDeadError, ServerGoneError; results up to then are kept.
    """
    waiting = (place for place in batch.runnable if not results.has(place))
    with open_input(batch.path) as file:
        worker = _Worker(endpoint, batch, file, results, advance, default_model)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(at_once):
                    group.create_task(worker.run(waiting))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[
                0
            ] from None  # the others were cancelled because of it, or failed with the same error


class _Worker:
    """The state shared by the requests of one run."""

    def __init__(
        self,
        endpoint: Endpoint,
        batch: BatchFile,
        file: BinaryIO,
        results: Results,
        advance: Advance,
        default_model: str,
    ) -> None:
        self._endpoint = endpoint
        self._batch = batch
        self._file = file
        self._results = results
        self._advance = advance
        self._default_model = default_model

    async def run(self, waiting: Iterator[Place]) -> None:
        """Process one request after another, until none is waiting."""
        for place in waiting:
            line = self._batch.read(self._file, place)
            result = BatchResult(f"batch_req_{place.digest.hex()}", line.custom_id, None, None)
            try:
                result.response = await self._answer(line)
            except EndpointError as error:
                result.error = BatchError("no_answer", str(error), place.number)
            self._results.add(place, result)
            self._advance(result)

    async def _answer(self, line: Line) -> BatchResponse:
        """Return the answer to one line; an interrupted one is retried once.

        Raises EndpointError when the retry is interrupted too, ServerGoneError, EngineDeadError.
        """
        body = _with_model(line.body, self._default_model)
        try:
            return await _asked(self._endpoint, line.url, body)
        except EndpointError:
            await self._check_server()
        return await _asked(self._endpoint, line.url, body)

    async def _check_server(self) -> None:
        """Raise ServerGoneError when the server does not answer a request for its models either."""
        try:
            with suppress(NoListError):
                await served_names(self._endpoint)
        except EndpointError as error:
            raise ServerGoneError(str(error)) from None


async def _asked(endpoint: Endpoint, url: str, body: bytes) -> BatchResponse:
    """Send one request and return the answer, retrying while the server is busy. Raises EndpointError, EngineDeadError."""
    for _ in range(MOST_TRIES):
        async with endpoint.ask("POST", url, body) as answer:
            text = await whole(answer)
        response = _response(answer.status, text)
        if answer.status not in BUSY:
            break
        await asyncio.sleep(_wait_seconds(answer))
    return response


def _response(status: int, text: bytes) -> BatchResponse:
    """Return an answer in the form of an output line. Raises EndpointError for one that is not JSON, EngineDeadError
    where it reports that.
    """
    try:
        body = msgspec.json.decode(text, type=_Body)
    except msgspec.DecodeError:
        quote = text[:LONGEST_QUOTE].decode(errors="replace")
        raise EndpointError(f"The server answered with status {status} and no JSON object: {quote}") from None
    if isinstance(body.error, dict) and body.error.get("code") == "engine_dead":
        raise EngineDeadError(str(body.error.get("message")))
    name = body.id if isinstance(body.id, str) else ""
    on_one_line = msgspec.json.format(text, indent=-1) if b"\n" in text else text
    return BatchResponse(status, name, msgspec.Raw(on_one_line))


def _with_model(body: msgspec.Raw, default_model: str) -> bytes:
    """Return the body with a model name; without a default, the unchanged body."""
    if not default_model:
        return bytes(body)
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    if "model" in fields:
        return bytes(body)
    return msgspec.json.encode({"model": default_model, **fields})


def _wait_seconds(answer: Answer) -> float:
    """Return how long a busy server asks to wait; dates in Retry-After are not parsed."""
    try:
        seconds = float(answer.headers["retry-after"])
    except (KeyError, ValueError):
        return DEFAULT_WAIT_SECONDS
    return min(seconds, LONGEST_WAIT_SECONDS) if seconds >= 0 else DEFAULT_WAIT_SECONDS
