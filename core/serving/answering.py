"""Answers a prepared request with a stream: one that ends with its connection, or one that outlives it.

Owns: the order of these steps, and what becomes of a kept request that fails before its first output. Never does: prepare, or
write events. Called by: the routes.
"""

from __future__ import annotations

import time

from fastapi import Request, Response

from core.api.errors import EngineDeadError
from core.engine.queue_limit import Arrival
from core.journal.records import EntryKind
from core.serving.context import context_of, tenant_of, user_of
from core.serving.disconnect import until_disconnect
from core.serving.durable.recorder import RequestRecorder
from core.serving.durable.streams import Job
from core.serving.event_stream import EventStream
from core.serving.generation import run_prompts
from core.serving.prepared import PreparedChat, PreparedCompletion, PreparedResponse
from core.serving.prompt_output import PromptOutput
from core.serving.streamed_answers import Outputs, streamed_events

Prepared = PreparedChat | PreparedCompletion | PreparedResponse


def kept(
    request: Request, kind: EntryKind, answer_id: str, user: str, created: int, prepared: Prepared
) -> RequestRecorder | None:
    """The record of a request that is to outlive the server; None where none does. Raises RequestError (503)."""
    streams = context_of(request).durable
    if streams is None:
        return None
    job = Job(kind, answer_id, tenant_of(request), created, time.time(), user)
    return streams.accept(job, prepared)


async def first_output(request: Request, outputs: Outputs, recorder: RequestRecorder | None) -> PromptOutput:
    """The first output: what fails before it is answered with a status of its own, and not kept."""
    try:
        first = await until_disconnect(request.receive, anext(outputs))
        if recorder is not None:
            await recorder.log.accepted()
    except EngineDeadError:
        raise  # the next server goes on
    except BaseException:
        await outputs.aclose()
        if recorder is not None:
            recorder.log.dropped()
        raise
    return first


async def stream_answer(
    request: Request, prepared: PreparedChat | PreparedCompletion, answer_id: str, arrival: Arrival
) -> Response:
    """The stream of a conversation or a completion. arrival: its place in the queue until here."""
    context = context_of(request)
    kind: EntryKind = "chat" if isinstance(prepared, PreparedChat) else "completion"
    user = user_of(request, prepared.body.user)
    created = int(time.time())
    recorder = kept(request, kind, answer_id, user, created, prepared)
    outputs = run_prompts(context, prepared, answer_id, user, arrival, recorder)
    first = await first_output(request, outputs, recorder)
    events = streamed_events(context, prepared, answer_id, created, first, outputs)
    if context.durable is None or recorder is None:
        return EventStream(events)
    stream = context.durable.run(kind, answer_id, tenant_of(request), recorder, events)
    return EventStream(stream.follow(0), done=b"")
