"""Construction of the run for a prepared response.

Owns: how its parts fit together. Never does: start it. Called by: the route, and `core_apis.durable`, which continues
the runs of earlier servers.
"""

from __future__ import annotations

from core_apis.answers.logprobs import LogprobsFormatter
from core_apis.answers.parsing import AnswerParser
from core_apis.answers.prompt_output import Outputs
from core_apis.callers.tenant import Tenant
from core_apis.context import ServingContext
from core_apis.generation import PromptRun
from core_apis.prepare.prepared import PreparedResponse
from core_apis.protocol.responses import ENCRYPTED_REASONING, LOGPROBS
from core_apis.responses.event_log import EventLog
from core_apis.responses.head import response_head
from core_apis.responses.message_logprobs import MessageLogprobs
from core_apis.responses.output_items import OutputItems
from core_apis.responses.run import ResponseRun, Rounds
from core_apis.responses.stored_response import StoredResponse
from core_apis.responses.writer import ResponseWriter


def response_run(
    context: ServingContext,
    tenant: Tenant,
    prepared: PreparedResponse,
    response_id: str,
    run: PromptRun,
    outputs: Outputs,
    *,
    created: int,
    rounds: Rounds | None = None,
) -> ResponseRun:
    """Return the run of a response.

    outputs: those of `run`, unless it cannot continue. created: seconds since the epoch. rounds: run the tools of tool
        servers; None: the response has none.
    """
    body = prepared.body
    head = response_head(prepared, response_id, created)
    head.service_tier = "flex" if run.flex else "default"
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
    writer = ResponseWriter(
        head,
        AnswerParser(prepared.chat),
        items,
        logprobs,
        times=bool(body.timings),
        hosted=prepared.hosted,
        tools=prepared.tools,
    )
    if not body.stored:
        return ResponseRun(writer, outputs, context.responses, None, rounds=rounds)
    entry = StoredResponse.of(tenant, head, prepared.items, EventLog() if body.stream else None)
    trail = context.pipeline.trail(run, entry, follows=bool(body.stream and not body.background))
    return ResponseRun(writer, outputs, context.responses, entry, trail, rounds)
