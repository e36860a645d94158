"""The preparation of several chats in one request.

Owns: its order: the split, then each chat. Never does: prepare a chat by itself: the preparer does that as for any chat, so
that those of other clients come in between. Called by: the pipeline, through the row of `core_apis.routes.chat`.
"""

from __future__ import annotations

from typing import Final

from core.api.errors import RequestError
from core_apis.body_kinds import Buffer
from core_apis.chats.bodies import KIND, SplitChats
from core_apis.field_names import of_conversation, own_names
from core_apis.prepare.amounts import check_amount
from core_apis.prepare.prepared import PreparedChats
from core_apis.prepare.preparer import Preparer

CHAT: Final = "chat"


async def prepare_chats(preparer: Preparer, *pieces: Buffer, owner: str | None = None) -> PreparedChats:
    """Prepare a body with several chats for the engine. Raises RequestError, which names the conversation.

    owner: see `Preparer.prepare`.
    """
    split: SplitChats = await preparer.prepare(KIND, *pieces)
    prepared = PreparedChats([])
    for index in range(len(split.conversations)):
        try:
            chat = await preparer.prepare(CHAT, split.body(index), owner=owner)
        except RequestError as error:
            raise of_conversation(error, index) from error
        prepared.chats.append(chat)
    lens = [len(prompt.token_ids) for prompt in prepared.prompts]
    with own_names({"prompt": "messages"}):
        check_amount(preparer.here.settings, prepared.params, lens)
    return prepared
