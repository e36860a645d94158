"""A run for a prepared response.

Owns: how its parts fit together. Never does: start it. Called by: the route, and `core.serving.durable`, which
takes up the runs of earlier servers.
"""

from __future__ import annotations

from core.serving.answer_parsing import AnswerParser
from core.serving.context import ServingContext
from core.serving.durable.patient_log import PatientLog
from core.serving.durable.recorder import RequestRecorder
from core.serving.durable.response_trail import ResponseTrail
from core.serving.logprobs import LogprobsFormatter
from core.serving.prepared import PreparedResponse
from core.serving.protocol.responses import ENCRYPTED_REASONING, LOGPROBS
from core.serving.responses.event_log import EventLog
from core.serving.responses.head import response_head
from core.serving.responses.message_logprobs import MessageLogprobs
from core.serving.responses.output_items import OutputItems
from core.serving.responses.run import Outputs, ResponseRun
from core.serving.responses.stored_response import StoredResponse, Tenant
from core.serving.responses.writer import ResponseWriter


def response_run(
    context: ServingContext,
    tenant: Tenant,
    prepared: PreparedResponse,
    response_id: str,
    outputs: Outputs,
    recorder: RequestRecorder | None,
    *,
    created: int,
) -> ResponseRun:
    """The run of a response. recorder: keeps what it gets; None: it ends with the server. created: seconds since the epoch."""
    body = prepared.body
    head = response_head(prepared, response_id, created)
    logprobs: MessageLogprobs | None = None
    if body.includes(LOGPROBS):
        formatter = LogprobsFormatter.of(context, prepared.chat.body)
        logprobs = MessageLogprobs(formatter, body.top_logprobs or 0)
    items = OutputItems(
        response_id,
        prepared.tools,
        summarized=body.tells_summary,
        sealed=body.includes(ENCRYPTED_REASONING),
        logprobs=logprobs,
    )
    writer = ResponseWriter(head, AnswerParser(prepared.chat), items, logprobs, times=bool(body.timings))
    if not body.stored:
        return ResponseRun(writer, outputs, context.responses, None)
    entry = StoredResponse.of(tenant, head, prepared.items, EventLog() if body.stream else None)
    streams = context.durable
    if streams is None or recorder is None:
        return ResponseRun(writer, outputs, context.responses, entry)
    entry.journaled = recorder.log
    if body.stream and not body.background:
        entry.log = PatientLog(streams.settings.patience_s, entry.cancel)
    trail = ResponseTrail(streams.journal, recorder, entry)
    return ResponseRun(writer, outputs, context.responses, entry, trail)
