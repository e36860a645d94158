"""/v1/chat/completions: answer a conversation, read a stream again.

Owns: the row and its paths.
"""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response

from core_apis.answers.chat_writer import ChatAnswer
from core_apis.durable.resuming import read_again
from core_apis.exchange import Exchange, id_with
from core_apis.pipeline import answered

router = APIRouter(tags=["generation"])

PATH = "/v1/chat/completions"
CHAT: Final = Exchange(kind="chat", identify=id_with("chatcmpl"), answer=ChatAnswer, lasts=True)
EXCHANGES: Final = (CHAT,)


@router.post(PATH)
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation."""
    return await answered(request, CHAT)


@router.get(PATH + "/{answer_id}")
async def read_chat_completion(request: Request, answer_id: str) -> Response:
    """Read the events of a kept stream again."""
    return await read_again(request, CHAT.kind, answer_id)
