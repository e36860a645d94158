"""POST /v1/messages and /v1/messages/count_tokens. Owns: their rows and paths. Never does: write events (the writer does)."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from core.serving.anthropic.writer import MessagesReply
from core.serving.body import json_response
from core.serving.context import context_of, tenant_of
from core.serving.errors import messages_error_event
from core.serving.exchange import Exchange
from core.serving.intake import intake
from core.serving.middleware import request_id_of
from core.serving.pipeline import answered

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
    """The tokens that the prompt of the same request would have."""
    context = context_of(request)
    prepare = partial(context.preparer.prepare, "count_tokens")
    async with intake(context, request, tenant_of(request), prepare) as (counted, _):
        context.tolerated.tell(request.url.path, counted.unknown)
        answer = json_response(counted.count)
        answer.headers["request-id"] = request_id_of(request.scope)
        return answer
