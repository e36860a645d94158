"""The pipeline of a request that needs the engine: intake, preparation, run, answer.

Owns: the order of these steps, the same for every API. Never does: one of them itself, or keep anything (the pipeline
of `core_apis.durable` does, if there is a journal). Called by: the routes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from fastapi import Request, Response

from core.api.errors import RequestError
from core_apis.answers.event_stream import EventStream
from core_apis.answers.explaining import HEADER, explain
from core_apis.answers.late_events import begun_events
from core_apis.callers.tenant import Tenant
from core_apis.context import ServingContext, context_of, tenant_of, user_of
from core_apis.exchange import Answer, Exchange
from core_apis.generation import PromptRun
from core_apis.intake import intake
from core_apis.receipts import note_receipt
from core_apis.responses.run import Trail
from core_apis.responses.stored_response import StoredResponse
from core_apis.server.disconnect import until_disconnect
from core_apis.sessions.joining import join_session
from core_apis.traffic.recorder import Prepare
from core_apis.transfer import check_transfer
from core_frontend.queue.limit import Arrival

KEY_HEADERS: Final = ("authorization", "x-api-key")
"""The headers in which an API key comes."""


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request on its way through the pipeline.

    prepared: its body, in the form that the preparation of its kind returned.
    arrival:  its place in the queue until it runs.
    """

    context: ServingContext
    request: Request
    tenant: Tenant
    prepared: Any
    arrival: Arrival

    @property
    def runs(self) -> Any:
        """Return the part of the prepared body that the engine runs: all of it, or the chat that it was translated
        into.
        """
        return getattr(self.prepared, "chat", self.prepared)

    @property
    def user(self) -> str:
        """Return the request's user, for the fair policy."""
        body = getattr(self.prepared, "body", None) or self.runs.body
        return user_of(self.context, self.tenant, body.user)


class Pipeline:
    """The pipeline of a server that keeps nothing: an answer ends with its connection."""

    async def serve(self, context: ServingContext, request: Request, exchange: Exchange) -> Response:
        """Answer a request. Raises RequestError and the engine's errors."""
        tenant = tenant_of(request)
        owner = context.tenants.name(tenant)
        prepare: Prepare = partial(context.preparer.prepare, exchange.kind, owner=owner)
        if exchange.prepare is not None:
            prepare = partial(exchange.prepare, context.preparer, owner=owner)
        note = None if context.traffic is None else context.traffic.begin(request, tenant, exchange.kind)
        if note is not None:
            prepare = note.keeping(prepare)
        async with intake(context, request, tenant, prepare) as (prepared, arrival):
            call = Call(context, request, tenant, prepared, arrival)
            note_fields(call)
            session = await join_session(context, tenant, request.headers, prepared)
            answer_id = exchange.identify(request, prepared)
            created = int(time.time())
            streams = bool(getattr(call.runs.body, "stream", False))
            run = await self.run(call, exchange.kind, answer_id, created, lasts=exchange.lasts and streams)
            run.session = session
            run.note = note
            run.key = {name: value for name in KEY_HEADERS if (value := request.headers.get(name))}
            # After the run: a run that is kept draws the seed of the ids that the answer will have.
            answer = exchange.answer(context, prepared, answer_id, created)
            if streams:
                return await self.stream(call, exchange, answer, run)
            response = await until_disconnect(request.receive, answer.whole(run.outputs))
            headers = exchange.headers(answer_id)
            if headers:
                response.headers.update(headers)
            return response

    async def run(self, call: Call, kind: str, answer_id: str, created: int, *, lasts: bool) -> PromptRun:
        """Return the run of a request's prompts, not yet started. lasts: whether it should outlive its connection."""
        return PromptRun(call.context, call.runs, answer_id, call.user, call.arrival)

    async def stream(self, call: Call, exchange: Exchange, answer: Answer, run: PromptRun) -> Response:
        """Return the answer as a stream, once its first output is there.

        With comments in silence, the stream begins after that time at the latest; an error is then its last event.
        """
        patience = call.context.server.sse_keep_alive_interval
        if patience:
            events = await begun_events(call.request.receive, run.outputs, answer.events, patience)
        else:
            events = answer.events(await run.first(call.request.receive), run.outputs)
        return EventStream(events, exchange.done, exchange.failed, exchange.headers(run.answer_id))

    def trail(self, run: PromptRun, entry: StoredResponse, *, follows: bool) -> Trail | None:
        """Return the trail that a kept response leaves for the next server; None: it ends with this one.

        follows: whether its client reads along.
        """
        return None


def note_fields(call: Call) -> None:
    """Report tolerated fields, and look outside the body for a request for an explanation or a receipt."""
    unknown = getattr(call.prepared, "unknown", ())
    if unknown:
        call.context.tolerated.tell(call.request.url.path, unknown)
    if HEADER in call.request.headers:
        explain(call.runs.body, call.request.headers[HEADER])
    if call.context.quotes is None and getattr(call.runs.body, "energy", None):
        raise RequestError(
            "energy is asked for, but this server does not tell it (--quotes); leave it out.", param="energy"
        )
    check_transfer(call.context.engine, call.runs)
    note_receipt(call.context.receipts, call.runs.body, call.request.headers)


async def answered(request: Request, exchange: Exchange) -> Response:
    """Answer a request; most routes do nothing else."""
    context = context_of(request)
    response: Response = await context.pipeline.serve(context, request, exchange)
    return response
