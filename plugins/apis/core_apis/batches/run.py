"""The run of one batch, from its validation to its files of results.

Owns: its workers, its progress, and how it ends. Never does: answer a request (the server's routes do), or choose which batch
runs. Called by: the service of batches.

The file of results is locked, so one process of all that share the directory runs a batch; when that process dies, another one
goes on with what the file has.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, BinaryIO, ParamSpec, TypeVar

import msgspec
from starlette.types import ASGIApp

from core.api.errors import UNREADABLE, ConfigError, EngineDeadError, UserError
from core_apis.batches.batch_file import BatchFile, Place, look_through, open_input
from core_apis.batches.calls import OwnAnswer, answer_to
from core_apis.batches.line import Line
from core_apis.batches.results import BatchError, BatchResponse, BatchResult, KeptResults
from core_apis.batches.store import BatchStore, private_file
from core_apis.errors import ended_early
from core_apis.protocol.batches import BatchObject, BatchProblems, BatchStatus, FileObject, LineProblem

TICK_S = 1.0
"""Seconds between two looks at whether a batch is to end, and two records of its progress."""
GRACE_S = 60.0
"""Seconds that a request lives longer than its batch, so that it is the batch that ends and no request of it times out."""
MOST_PROBLEMS = 100
BUSY = (429, 503)
LONGEST_WAIT_S = 60.0
ENDED_EARLY = str(ended_early())
LONG_LINE = 64 * 1024
"""Size in bytes from which a line or an answer, such as one with many vectors, is read outside the event loop."""
END_TIMES = {
    "completed": "completed_at",
    "failed": "failed_at",
    "expired": "expired_at",
    "cancelled": "cancelled_at",
}

P = ParamSpec("P")
T = TypeVar("T")


class _Error(msgspec.Struct):
    code: str | None = None
    message: str | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Head(msgspec.Struct):
    """What matters of an answer of any kind."""

    id: str = ""
    error: _Error | None = None
    choices: list[_Choice] = []

    @property
    def is_cut(self) -> bool:
        """Whether the server ended the answer early, because it was put to sleep, paused, or got new weights."""
        is_told = self.error is not None and self.error.message == ENDED_EARLY
        return is_told or any(choice.finish_reason == "abort" for choice in self.choices)


@dataclass(frozen=True)
class Surroundings:
    """What the batches of one server share.

    places: limit of the requests that run at once, of all batches.
    model:  name of the model, a part of the digest of each line.
    """

    app: ASGIApp
    store: BatchStore
    places: asyncio.Semaphore
    num_places: int
    model: str
    max_body_size: int


class BatchRun:
    """The run of one batch. owner: its directory. key: the API key of its requests; None: they have none."""

    def __init__(self, around: Surroundings, owner: str, key: str | None, batch: BatchObject) -> None:
        self.around = around
        self.owner = owner
        self.batch = batch
        self._key = key
        self._store = around.store

    async def run(self) -> None:
        """Run the batch until `batch.has_ended`. It does nothing where another process runs it.

        Raises OSError and OutputError when the disk is full: what is there is kept for another run. A cancelled run keeps it as
        well.
        """
        try:
            results = await asyncio.to_thread(KeptResults, self._store.path(self.owner, self.batch.id, ""))
        except UserError:
            return
        with results:
            batch = await asyncio.to_thread(self._store.batch, self.owner, self.batch.id)
            if batch is None:
                return
            self.batch = batch
            if batch.has_ended:
                return
            lines = await self._validated()
            if lines is None:
                return
            await asyncio.to_thread(self._count, lines, results)
            outcome = await self._finish_lines(lines, results)
            self.batch.finalizing_at = self.batch.finalizing_at or int(time.time())
            await asyncio.to_thread(self._end, outcome, lines, results)

    # --- validation ---

    async def _validated(self) -> BatchFile | None:
        """Return the lines of the input file; None when they cannot be run, and the batch has failed."""
        found = await asyncio.to_thread(self._look)
        if isinstance(found, BatchFile):
            return found
        self.batch.errors = BatchProblems(found[:MOST_PROBLEMS])
        await asyncio.to_thread(self._end, "failed", None, None)
        return None

    def _look(self) -> BatchFile | list[LineProblem]:
        """Read the whole file once; return its problems if it has any."""
        batch = self.batch
        path = self._store.path(self.owner, batch.input_file_id, ".data")
        if self._store.file(self.owner, batch.input_file_id) is None:
            return [LineProblem("invalid_input_file", f"The file '{batch.input_file_id}' is gone.")]
        try:
            lines = look_through(path, self.around.model, self.around.max_body_size)
        except ConfigError as error:
            return [LineProblem("duplicate_custom_id", _without_path(each, path)) for each in error.problems]
        except UserError as error:
            return [LineProblem("invalid_input_file", _without_path(str(error), path))]
        most = self._store.settings.max_requests
        if len(lines.places) > most:
            text = f"The file has {len(lines.places)} requests; expected at most {most} (--max-batch-requests)."
            return [LineProblem("too_many_requests", text)]
        problems = [
            LineProblem(place.error.code, str(place.error), place.number) for place in lines.places if place.error
        ]
        for place in lines.runnable:
            if place.url != batch.endpoint:
                text = (
                    f"Line {place.number}: url is '{place.url}', but the endpoint of the batch is '{batch.endpoint}'."
                )
                problems.append(LineProblem("mismatched_url", text, place.number, "url"))
        return problems or lines

    # --- the lines ---

    async def _finish_lines(self, lines: BatchFile, results: KeptResults) -> BatchStatus:
        """Run all lines without a result, until they have one or the batch is to end; returns how it ends."""
        waiting = (place for place in lines.runnable if not results.has(place))
        if self.batch.status == "validating":
            self.batch.status = "in_progress"
            self.batch.in_progress_at = int(time.time())
            await asyncio.to_thread(self._store.save, self.owner, self.batch)
        with open_input(lines.path) as file:
            adding = asyncio.Lock()
            workers = min(self.around.num_places, len(lines.runnable))
            working = asyncio.gather(*[self._work(lines, file, waiting, results, adding) for _ in range(workers)])
            try:
                return await self._watched(working)
            finally:
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)

    async def _watched(self, working: asyncio.Future[Any]) -> BatchStatus:
        """Wait for the workers, record their progress, and see whether the batch is to end before them."""
        counts = (-1, -1)
        while True:
            outcome = await asyncio.to_thread(self._why_end)
            if outcome is not None:
                return outcome
            now = (self.batch.request_counts.completed, self.batch.request_counts.failed)
            if now != counts:
                counts = now
                await asyncio.to_thread(self._store.save, self.owner, self.batch)
            await asyncio.wait({working}, timeout=TICK_S)
            if working.done():
                working.result()
                return "completed"

    def _why_end(self) -> BatchStatus | None:
        """Return how the batch ends although lines are left; None: it goes on."""
        if self._store.path(self.owner, self.batch.id, ".cancel").exists():
            return "cancelled"
        if time.time() >= self.batch.expires_at:
            return "expired"
        if self._store.room(self.owner) < 0:
            most = self._store.settings.max_bytes
            text = f"The files of this API key take more than {most} bytes (--batch-directory-size); delete some."
            self.batch.errors = BatchProblems([LineProblem("no_room", text)])
            return "failed"
        return None

    async def _work(
        self, lines: BatchFile, file: BinaryIO, waiting: Iterator[Place], results: KeptResults, adding: asyncio.Lock
    ) -> None:
        """Run one line after the other, until none is waiting."""
        while True:
            async with self.around.places:
                place = next(waiting, None)
                if place is None:
                    return
                line = await _aside(place.size, lines.read, file, place)
                result = BatchResult(f"batch_req_{place.digest.hex()}", line.custom_id, None, None)
                await self._answer(line, place, result)
            async with adding:
                await asyncio.to_thread(results.add, place, result)
            self._count_one(result)

    async def _answer(self, line: Line, place: Place, result: BatchResult) -> None:
        """Fill in the answer to one line. A busy server, and one that cut the answer short, is asked again."""
        body = await _aside(place.size, _of_batch_class, line.body, self.batch.expires_at)
        while True:
            answer = await answer_to(self.around.app, line.url, body, self._key)
            head = await _aside(len(answer.body), _head, answer)
            if head.error is not None and head.error.code == "engine_dead":
                raise EngineDeadError(head.error.message or "")
            if answer.status not in BUSY and not head.is_cut:
                break
            await asyncio.sleep(_wait_s(answer))
        try:
            data = await _aside(len(answer.body), _in_one_line, answer)
            result.response = BatchResponse(answer.status, head.id, msgspec.Raw(data))
        except UNREADABLE:
            text = f"The server answered with status {answer.status} and no JSON."
            result.error = BatchError("no_answer", text, place.number)

    def _count(self, lines: BatchFile, results: KeptResults) -> None:
        """Count the results of earlier runs."""
        counts = self.batch.request_counts
        counts.total = len(lines.places)
        counts.completed = counts.failed = 0
        for place in lines.runnable:
            if results.has(place):
                self._count_one(msgspec.json.decode(results.text(place), type=BatchResult))

    def _count_one(self, result: BatchResult) -> None:
        counts = self.batch.request_counts
        if _is_success(result):
            counts.completed += 1
        else:
            counts.failed += 1

    # --- the end ---

    def _end(self, outcome: BatchStatus, lines: BatchFile | None, results: KeptResults | None) -> None:
        """Write the files of results, and the batch as it is from now on."""
        if lines is not None and results is not None:
            self.batch.output_file_id = self._write("output", self._texts(lines, results, outcome, successes=True))
            self.batch.error_file_id = self._write("error", self._texts(lines, results, outcome, successes=False))
        self.batch.status = outcome
        setattr(self.batch, END_TIMES[outcome], int(time.time()))
        self._store.end(self.owner, self.batch)

    def _texts(
        self, lines: BatchFile, results: KeptResults, outcome: BatchStatus, *, successes: bool
    ) -> Iterator[bytes]:
        for place in lines.runnable:
            if results.has(place):
                text = results.text(place)
                if _is_success(msgspec.json.decode(text, type=BatchResult)) == successes:
                    yield text
            elif outcome == "expired" and not successes:
                with open_input(lines.path) as file:
                    custom_id = lines.read(file, place).custom_id
                why = BatchError(
                    "batch_expired", "The completion window of the batch ended before this request.", place.number
                )
                yield msgspec.json.encode(BatchResult(f"batch_req_{place.digest.hex()}", custom_id, None, why))

    def _write(self, kind: str, texts: Iterator[bytes]) -> str | None:
        """Write a file of results; returns its id, the same after a death in between, or None when it would be empty."""
        name = "file-" + blake2b(f"{self.batch.id} {kind}".encode(), digest_size=12).hexdigest()
        draft = self._store.path(self.owner, name, ".tmp")
        draft.unlink(missing_ok=True)
        try:
            size = 0
            with private_file(draft) as file:
                for text in texts:
                    size += file.write(text + b"\n")
                file.flush()
            if not size:
                return None
            record = FileObject(
                id=name,
                bytes=size,
                created_at=int(time.time()),
                filename=f"{self.batch.id}_{kind}.jsonl",
                purpose="batch_output",
            )
            self._store.keep(self.owner, draft, record)
        finally:
            draft.unlink(missing_ok=True)
        return name


def _of_batch_class(body: msgspec.Raw, expires_at: int) -> bytes:
    """Return a request as one of the batch class, which ends with its batch unless it has a timeout of its own."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    fields["service_tier"] = msgspec.Raw(b'"flex"')
    left = max(expires_at - time.time(), 0.0) + GRACE_S
    fields.setdefault("timeout", msgspec.Raw(json.dumps(round(left, 3)).encode()))
    return msgspec.json.encode(fields)


async def _aside(num_bytes: int, work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Do work on so many bytes, outside the event loop if they are many."""
    if num_bytes < LONG_LINE:
        return work(*arguments, **options)
    return await asyncio.to_thread(work, *arguments, **options)


def _in_one_line(answer: OwnAnswer) -> bytes:
    """Return an answer as it stands in a line of results. Raises one of `UNREADABLE` for an answer that is no JSON."""
    data = msgspec.json.format(bytes(answer.body), indent=-1) if b"\n" in answer.body else bytes(answer.body)
    # Else the line of results would be no JSON. As `Raw`, since objects take ten times as long, and no other thread runs.
    msgspec.json.decode(data, type=msgspec.Raw)
    data.decode()
    return data


def _head(answer: OwnAnswer) -> _Head:
    """Return what matters of an answer; nothing of one that has another form."""
    try:
        return msgspec.json.decode(answer.body, type=_Head)
    except UNREADABLE:
        return _Head()


def _is_success(result: BatchResult) -> bool:
    return result.response is not None and result.response.status_code == 200


def _wait_s(answer: OwnAnswer) -> float:
    """Return the seconds after which a busy server wants to be asked again."""
    given = answer.headers.get("retry-after", "1")
    return min(float(given), LONGEST_WAIT_S) if given.isdigit() else 1.0


def _without_path(text: str, path: object) -> str:
    """Return a sentence about a file without the place where the server keeps it."""
    return text.replace(f"{path}: ", "The file: ", 1)
