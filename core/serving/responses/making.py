"""A run for a prepared response.

Owns: how its parts fit together. Never does: start it. Called by: the route, and `core.serving.durable`, which
takes up the runs of earlier servers.
"""

from __future__ import annotations

from core.serving.answer_parsing import AnswerParser
from core.serving.context import ServingContext
from core.serving.generation import PromptRun
from core.serving.logprobs import LogprobsFormatter
from core.serving.prepared import PreparedResponse
from core.serving.prompt_output import Outputs
from core.serving.protocol.responses import ENCRYPTED_REASONING, LOGPROBS
from core.serving.responses.event_log import EventLog
from core.serving.responses.head import response_head
from core.serving.responses.message_logprobs import MessageLogprobs
from core.serving.responses.output_items import OutputItems
from core.serving.responses.run import ResponseRun
from core.serving.responses.stored_response import StoredResponse
from core.serving.responses.writer import ResponseWriter
from core.serving.tenant import Tenant


def response_run(
    context: ServingContext,
    tenant: Tenant,
    prepared: PreparedResponse,
    response_id: str,
    run: PromptRun,
    outputs: Outputs,
    *,
    created: int,
) -> ResponseRun:
    """The run of a response. outputs: those of `run`, unless it cannot go on. created: seconds since the epoch."""
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
    trail = context.pipeline.trail(run, entry, follows=bool(body.stream and not body.background))
    return ResponseRun(writer, outputs, context.responses, entry, trail)
