"""Conversations that are pooled: each has one vector, or the classes, of the prompt that it renders to.

Owns: their Struct, and making one of parts that stand alone. Never does: render, or read an item. Called by: the bodies of the
pooling routes, their preparation.
"""

from __future__ import annotations

from typing import Any

import msgspec

from core.api.errors import RequestError
from core_apis.protocol.messages import Conversation, Message
from core_media.reading.parts import PlacedPart

SYSTEM = ("system", "developer")


class PooledConversation(msgspec.Struct, Conversation, kw_only=True):
    """One conversation to pool.

    param:    field of the request that it comes from.
    is_parts: whether it is one message of parts that the request did not give as a conversation, which a model without a chat
        template reads as well.
    add_generation_prompt: unlike in chats, None means false.
    mm_processor_kwargs: arguments of the image processor for its pictures.
    """

    param: str
    messages: list[Message] | None
    is_parts: bool = False
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None

    @property
    def opens_answer(self) -> bool:
        """Whether the rendered prompt ends where an answer would begin."""
        return bool(self.add_generation_prompt)

    @property
    def text_alone(self) -> str:
        """Return the texts of its messages, without pictures."""
        contents = [message["content"] for message in self.messages or []]
        parts = [[content] if isinstance(content, str) else _texts(content) for content in contents]
        return "\n".join(text for texts in parts for text in texts)

    def introduced(self, front: str, *, is_named: bool) -> PooledConversation:
        """Return the conversation with the checkpoint's prompt as its system message.

        is_named: whether the request names that prompt. Raises RequestError where it has a system message as well.
        """
        messages = self.messages or []
        if any(isinstance(message, dict) and message.get("role") in SYSTEM for message in messages):
            if is_named:
                raise RequestError(
                    "prompt_name puts the prompt of that name in front as a system message, and messages have one; leave one "
                    "of them out.",
                    param="prompt_name",
                )
            return self
        first: Message = {"role": SYSTEM[0], "content": front}
        return msgspec.structs.replace(self, messages=[first, *messages])


def entry_of(entry: Any, place: str, param: str) -> str | PooledConversation:
    """Return what an entry `{"content": [parts]}` has: its text, where it is nothing else. Raises RequestError."""
    parts = entry.get("content") if isinstance(entry, dict) else None
    if not isinstance(parts, list) or not parts:
        raise RequestError(
            f"{place} has no list of parts; expected {{'content': [{{'type': 'text', 'text': ...}}]}}.",
            param=param,
            code="invalid_type",
        )
    content = [_part(part, f"{place}.content[{number}]", param) for number, part in enumerate(parts)]
    if len(content) == 1 and not isinstance(content[0], PlacedPart):
        return str(content[0]["text"])
    return as_message(content, param)


def as_message(content: list[dict[str, Any]], param: str) -> PooledConversation:
    """Return the message of a user with these parts. param: field of the request that they come from."""
    return PooledConversation(param=param, messages=[{"role": "user", "content": content}], is_parts=True)


def _part(part: Any, place: str, param: str) -> dict[str, Any]:
    """Return a part of an entry; one that is no text knows its place. Raises RequestError."""
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        raise RequestError(f"{place} has no type; expected 'text' or 'image_url'.", param=param, code="invalid_type")
    if kind != "text":
        return PlacedPart(part, place, kind)
    if not isinstance(part.get("text"), str) or not part["text"]:
        raise RequestError(f"{place}.text is empty or no text; give text.", param=param, code="invalid_type")
    return {"type": "text", "text": part["text"]}


def _texts(parts: list[dict[str, Any]]) -> list[str]:
    return [part["text"] for part in parts if part.get("type") == "text"]
