"""A response while it is generated: for a client that waits for it, for one that reads along, or in the background.

Owns: what happens to a response when the engine fails or the client disconnects, and when it is stored. Never does:
write events (the writer does), or run the engine itself. Called by: the route.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Protocol

from core.api.errors import CoreError, EngineDeadError
from core_apis.answers.prompt_output import Outputs
from core_apis.answers.stream import num_entries, written
from core_apis.errors import error_event
from core_apis.protocol.response_objects import ResponseObject, Status
from core_apis.responses.hosted_calls import HostedCall
from core_apis.responses.store import ResponseStore
from core_apis.responses.stored_response import StoredResponse
from core_apis.responses.writer import ResponseWriter
from core_apis.tools.offered import CallResult
from core_frontend.api.outputs import RequestOutput

logger = logging.getLogger("core_apis")

TOKEN_CHARACTERS = 4
"""Characters of a result of a tool that take as long to write as a token."""


class Trail(Protocol):
    """The records of a running response for the next server."""

    async def written(self) -> None:
        """Wait until the outputs of the response so far are written."""
        ...

    def noted(self, events: list[bytes]) -> list[bytes]:
        """Record events that are about to be shown; return them with their ids."""
        ...


class Rounds(Protocol):
    """The tools that a response runs, and the further runs of the model that read their results."""

    def start(self, calls: Sequence[HostedCall]) -> Mapping[str, asyncio.Future[CallResult]]:
        """Start calls; return their results by the id of each."""
        ...

    async def next(self, writer: ResponseWriter) -> Outputs | None:
        """Return the outputs of the next run; None: no token is left for it. Raises RequestError."""
        ...


class ResponseRun:
    """The run of one response.

    outputs: of the engine; closed with the run, which aborts what still runs.
    entry: the store's entry; None: the response is not stored.
    trail: lets the response outlive the server; None: it ends with the server.
    rounds: run the tools of tool servers; None: it has none.
    num_written: tokens and log probabilities in it so far.
    """

    def __init__(
        self,
        writer: ResponseWriter,
        outputs: Outputs,
        store: ResponseStore,
        entry: StoredResponse | None,
        trail: Trail | None = None,
        rounds: Rounds | None = None,
    ) -> None:
        self.writer = writer
        self.outputs = outputs
        self._store = store
        self.entry = entry
        self.num_written = 0
        self._trail = trail
        self._rounds = rounds

    @property
    def is_kept_apart(self) -> bool:
        """Whether it runs independently of its connection, because a later server could continue it."""
        return self._trail is not None

    async def whole(self) -> ResponseObject:
        """Return the response once it has ended. A failure is raised, and nothing is stored."""
        self.writer.list_tools()
        async with aclosing(self.outputs) as outputs:
            async for _, output in outputs:
                await self._pushed(output)
        async with aclosing(self._further()) as further:
            async for _ in further:
                pass
        self._keep()
        return self.writer.response

    async def events(self, first: RequestOutput | None = None) -> AsyncGenerator[bytes, None]:
        """Yield the events as they come. A failure is an event too.

        first: an output that was already awaited.
        """
        try:
            async with aclosing(self.outputs) as outputs:
                events = self.writer.begin()
                if first is not None:
                    events += await self._pushed(first)
                while True:
                    if events:
                        # A client must not see an event that a later server could contradict.
                        if self._trail is not None:
                            await self._trail.written()
                        yield self._noted(events)
                    item = await anext(outputs, None)
                    if item is None:
                        break
                    events = await self._pushed(item[1])
            async with aclosing(self._further()) as further:
                async for events in further:
                    yield self._noted(events)
        except Exception as error:
            if not isinstance(error, CoreError):
                logger.exception("A response failed.")
            if self._trail is not None and isinstance(error, EngineDeadError):
                self._suspend(error)
            elif not self.writer.ended:
                yield self._noted(self.writer.fail(error))
        finally:
            self._cancel()

    async def _further(self) -> AsyncGenerator[list[bytes], None]:
        """Run the calls of tool servers, and the model again with their results, until the response has ended.

        Yield the events of all that. They are written in a thread: a result may have a megabyte.
        """
        rounds = self._rounds
        while rounds is not None and self.writer.calls and not self.writer.ended:
            results = rounds.start(self.writer.calls)
            try:
                while self.writer.awaited is not None:
                    result = await results[self.writer.awaited]
                    self.num_written += len(result.output or "") // TOKEN_CHARACTERS
                    yield await asyncio.to_thread(self.writer.resume, result)
            finally:
                for each in results.values():
                    each.cancel()
            outputs = None if self.writer.needs_client else await rounds.next(self.writer)
            if outputs is None:
                yield await asyncio.to_thread(self._end, "completed" if self.writer.needs_client else "incomplete")
                return
            self.outputs = outputs
            async with aclosing(outputs):
                async for _, output in outputs:
                    yield await self._pushed(output)

    async def _pushed(self, output: RequestOutput) -> list[bytes]:
        """Return the events of an output. The last ones contain the whole response."""
        num_new = num_entries(output)
        self.num_written += num_new
        return await written(output, partial(self._push, output), self.num_written if output.finished else num_new)

    def _push(self, output: RequestOutput) -> list[bytes]:
        events = self.writer.push(output)
        if self.writer.ended and self.entry is not None:
            self.entry.write()
        return events

    def _end(self, status: Status) -> list[bytes]:
        events = self.writer.end(status)
        if self.entry is not None:
            self.entry.write()
        return events

    def start(self, first: RequestOutput | None = None) -> None:
        """Run without a client. The entry is stored from now on. first: see `events`."""
        entry = self.entry
        assert entry is not None, "a response in the background is kept"
        entry.task = asyncio.ensure_future(self._pump(first))
        entry.task.add_done_callback(lambda task: self._cancel())
        self._store.add(entry)

    async def _pump(self, first: RequestOutput | None) -> None:
        async with aclosing(self.events(first)) as events:
            async for _ in events:
                pass

    def _suspend(self, error: EngineDeadError) -> None:
        """Stop for the next server, which continues.

        Its events take the next numbers, so the event that reports the reason has none.
        """
        entry = self.entry
        assert entry is not None, "what outlives the server is kept"
        entry.is_suspended = True
        if entry.log is not None:
            entry.log.append([error_event(error)])

    def _cancel(self) -> None:
        """End the response, unless it has ended.

        A task that is cancelled before its first step has not run its own cleanup.
        """
        entry = self.entry
        if entry is not None and entry.is_suspended:
            if entry.log is not None:
                entry.log.close()
        elif not self.writer.ended:
            self._noted(self.writer.end("cancelled"))

    def _noted(self, events: list[bytes]) -> bytes:
        """Return the events as one piece.

        They are stored before a client sees them: its next request may be about them.
        """
        entry = self.entry
        if self._trail is not None:
            events = self._trail.noted(events)
        if entry is not None and entry.log is not None:
            entry.log.append(events)
        if self.writer.ended:
            self._keep()
        return b"".join(events)

    def _keep(self) -> None:
        """Store the response, which has ended."""
        entry = self.entry
        if entry is None:
            return
        was_kept = entry.task is not None
        entry.finish()
        if entry.log is not None:
            entry.log.close()
        if was_kept:
            self._store.update(entry)
        else:
            self._store.add(entry)
        if self._store.keeper is not None:
            self._store.keeper.keep(entry)
