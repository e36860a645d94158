"""Bodies of /v1/chat/completions/batch.

Owns: their form, and the fields of a chat that they refuse. Called by: `core_apis.chats.bodies`, the OpenAPI document, the
page of fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from core_apis.protocol.chat import ChatRequest
from core_apis.protocol.messages import Message

REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = MappingProxyType(
    {
        "stream": ((False,), "the answer is whole; stream each chat by /v1/chat/completions"),
        "n": ((1,), "each conversation has one choice; repeat the conversation"),
        "tools": (([],), "send chats with tools to /v1/chat/completions, or a file of them to /v1/batches"),
        "tool_choice": (("none",), "send chats with tools to /v1/chat/completions, or a file of them to /v1/batches"),
        "use_beam_search": ((False,), "send chats with beams to /v1/chat/completions"),
        "prompt_logprobs": ((), "send chats whose prompts are scored to /v1/chat/completions"),
        "session": ((), "a session is of one conversation; name it at /v1/chat/completions"),
        "kv_transfer_params": (({},), "blocks are handed over for one conversation, at /v1/chat/completions"),
    }
)
"""Fields of a chat that are refused here: the values that are harmless besides null, and the way out."""


class ChatsRequest(ChatRequest, forbid_unknown_fields=True, kw_only=True):
    """Conversations to continue, with the fields of a chat for all of them.

    messages: the conversations, each a list of messages.
    """

    messages: list[list[Message]] | None = None  # type: ignore[assignment]
