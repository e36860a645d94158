"""POST /v1/messages and /v1/messages/count_tokens.

Owns: their rows and paths. Never does: write events (the writer does).
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from core_apis.anthropic.writer import MessagesReply
from core_apis.body import json_response
from core_apis.context import context_of, tenant_of
from core_apis.errors import messages_error_event
from core_apis.exchange import Exchange
from core_apis.intake import intake
from core_apis.pipeline import answered
from core_apis.server.middleware import request_id_of

router = APIRouter(tags=["messages"])

PREFIX = "msg_"


def _id(request: Request, prepared: Any) -> str:
    return PREFIX + request_id_of(request.scope)


def _headers(answer_id: str) -> dict[str, str]:
    return {"request-id": answer_id.removeprefix(PREFIX)}


MESSAGES: Final = Exchange(
    kind="messages",
    identify=_id,
    answer=MessagesReply,
    headers=_headers,
    done=b"",
    failed=messages_error_event,
)
EXCHANGES: Final = (MESSAGES,)


@router.post("/v1/messages")
async def create_message(request: Request) -> Response:
    """Answer a conversation."""
    return await answered(request, MESSAGES)


@router.post("/v1/messages/count_tokens")
async def count_tokens(request: Request) -> Response:
    """Count the tokens that the prompt of the same request would have."""
    context = context_of(request)
    prepare = partial(context.preparer.prepare, "count_tokens")
    async with intake(context, request, tenant_of(request), prepare) as (counted, _):
        context.tolerated.tell(request.url.path, counted.unknown)
        answer = json_response(counted.count)
        answer.headers["request-id"] = request_id_of(request.scope)
        return answer
