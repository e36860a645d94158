"""The request pipeline of a server with a journal: streams and responses may outlive their connections, and the server.

Owns: `DurablePipeline`, which adds the journal to the plain pipeline, and `RecordedRun`. Never does: write to the disk
(the journal does), or answer anything in another form than the plain pipeline. Called by: `core_apis.app` (builds),
`restoring`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from fastapi import Request, Response
from starlette.types import Receive

from core.api.errors import EngineDeadError
from core_apis.answers.event_stream import EventStream
from core_apis.answers.prompt_output import PromptOutput
from core_apis.context import ServingContext, tenant_of
from core_apis.durable.event_ids import last_event_id
from core_apis.durable.patient_log import PatientLog
from core_apis.durable.recorder import RequestRecorder
from core_apis.durable.response_trail import ResponseTrail
from core_apis.durable.streams import DurableStreams, Job
from core_apis.exchange import Answer, Exchange
from core_apis.generation import PromptRun, Runnable
from core_apis.pipeline import Call, Pipeline
from core_apis.responses.run import Trail
from core_apis.responses.stored_response import StoredResponse
from core_frontend.api.outputs import RequestOutput
from core_frontend.queue.limit import Arrival
from core_frontend.request_terms import RequestTerms


class RecordedRun(PromptRun):
    """A run whose outputs are recorded.

    recorder: records the outputs of the prompts, and knows those recorded earlier.
    """

    def __init__(
        self,
        context: ServingContext,
        prepared: Runnable,
        answer_id: str,
        user: str,
        arrival: Arrival,
        recorder: RequestRecorder,
    ) -> None:
        super().__init__(context, prepared, answer_id, user, arrival)
        self.again = recorder.again
        self.recorder = recorder

    async def first(self, receive: Receive) -> PromptOutput:
        """Return the first output, as in `PromptRun`; a run that fails before it is not kept."""
        try:
            first = await super().first(receive)
            await self.recorder.log.accepted()
        except EngineDeadError:
            raise  # the next server continues the run
        except BaseException:
            await self.outputs.aclose()
            self.recorder.log.dropped()
            raise
        return first

    async def accepted(self) -> None:
        """Wait until the request is on disk: what is to outlive the server is stored before the client hears of it."""
        await self.recorder.log.accepted()

    def terms(self, index: int) -> RequestTerms:
        """Return the terms of one prompt, as in `PromptRun`, with the prompt's recorder."""
        return replace(super().terms(index), recorder=self.recorder.part(index))

    async def merged(self, runs: Sequence[AsyncGenerator[RequestOutput, None]]) -> AsyncGenerator[PromptOutput, None]:
        """Merge the outputs of all prompts, as in `PromptRun`; several prompts in the order in which they were
        recorded.
        """
        outputs = super().merged(runs)
        if len(runs) > 1:
            outputs = self.recorder.in_order(outputs)
        async with aclosing(outputs) as items:
            async for item in items:
                self.recorder.count(item[1])
                yield item


class DurablePipeline(Pipeline):
    """The request pipeline of a server with a journal."""

    def __init__(self, streams: DurableStreams) -> None:
        self.streams = streams

    async def serve(self, context: ServingContext, request: Request, exchange: Exchange) -> Response:
        """Serve as `Pipeline` does, or send the rest of the stream after the last event that the client names."""
        last = last_event_id(request) if exchange.lasts else None
        if last is None:
            return await super().serve(context, request, exchange)
        events = await self.streams.after(tenant_of(request), exchange.kind, last.answer_id, last)
        return EventStream(events, done=b"")

    async def run(self, call: Call, kind: str, answer_id: str, created: int, *, lasts: bool) -> PromptRun:
        """Return the run as `Pipeline` does, recorded if it lasts.

        Raises RequestError (503) if it cannot be recorded.
        """
        if not lasts:
            return await super().run(call, kind, answer_id, created, lasts=False)
        user = call.user
        job = Job(kind, answer_id, call.tenant, created, time.time(), user)
        adapters = call.context.adapters
        facts = None if adapters is None else adapters.facts(call.runs.model)
        recorder = await self.streams.accept(job, call.prepared, "" if facts is None else facts.digest)
        return RecordedRun(call.context, call.runs, answer_id, user, call.arrival, recorder)

    async def stream(self, call: Call, exchange: Exchange, answer: Answer, run: PromptRun) -> Response:
        """Stream as `Pipeline` does; a recorded run continues when its client disconnects."""
        if not isinstance(run, RecordedRun):
            return await super().stream(call, exchange, answer, run)
        first = await run.first(call.request.receive)
        events = answer.events(first, run.outputs)
        stream = self.streams.run(exchange.kind, run.answer_id, call.tenant, run.recorder, events)
        return EventStream(stream.follow(0), done=b"")

    def trail(self, run: PromptRun, entry: StoredResponse, *, follows: bool) -> Trail | None:
        """Return the trail of a response whose run is recorded."""
        if not isinstance(run, RecordedRun):
            return super().trail(run, entry, follows=follows)
        entry.journaled = run.recorder.log
        if follows:
            entry.log = PatientLog(self.streams.settings.patience_s, entry.cancel)
        return ResponseTrail(self.streams.journal, run.recorder, entry)
