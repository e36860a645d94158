"""/v1/chat/completions: answer a conversation or several, read a stream again.

Owns: the rows and their paths.
"""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response

from core_apis.answers.chat_writer import ChatAnswer
from core_apis.chats.bodies import KIND
from core_apis.chats.preparing import prepare_chats
from core_apis.chats.writer import ChatsAnswer
from core_apis.durable.resuming import read_again
from core_apis.exchange import Exchange, id_with
from core_apis.pipeline import answered

router = APIRouter(tags=["generation"])

PATH = "/v1/chat/completions"
BATCH = PATH + "/batch"
CHAT: Final = Exchange(kind="chat", identify=id_with("chatcmpl"), answer=ChatAnswer, lasts=True)
CHATS: Final = Exchange(kind=KIND, identify=id_with("chatcmpl"), answer=ChatsAnswer, prepare=prepare_chats)
EXCHANGES: Final = (CHAT, CHATS)


@router.post(PATH)
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation."""
    return await answered(request, CHAT)


@router.post(BATCH)
async def create_chat_completions(request: Request) -> Response:
    """Answer several conversations, with a choice for each."""
    return await answered(request, CHATS)


@router.get(PATH + "/{answer_id}")
async def read_chat_completion(request: Request, answer_id: str) -> Response:
    """Read the events of a kept stream again."""
    return await read_again(request, CHAT.kind, answer_id)
