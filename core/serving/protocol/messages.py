"""The messages of a conversation and how the template is to show them.

Owns: `Conversation`, the checks and meaning of these fields. Never does: render (`core.tokens.chat_template` does).
Called by: the chat and tokenize bodies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core.api.config import ServerLimits
from core.api.errors import RequestError

Message = dict[str, Any]

RESERVED = frozenset(
    {"add_generation_prompt", "chat_template", "continue_final_message", "documents", "messages", "self", "tools"}
)


class Conversation:
    """The common part of bodies with messages. A mixin: each body declares these fields itself.

    messages: {role, content, ...}; content is text or a list of text parts.
    add_generation_prompt: None means true, unless the final message is to be continued.
    chat_template_kwargs:  further variables for the template.
    reasoning_effort:      one of them under OpenAI's name.
    chat_template:         always refused: templates are code, and come from the checkpoint or the command line.
    """

    __slots__ = ()

    messages: list[Message] | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    chat_template: str | None
    chat_template_kwargs: dict[str, Any] | None
    documents: list[dict[str, Any]] | None
    tools: list[Any] | None
    tool_choice: Any
    reasoning_effort: str | None

    def check_conversation(self, limits: ServerLimits) -> None:
        """Refuse messages and template settings that cannot be served, and bring contents into one form."""
        if not self.messages:
            raise RequestError("messages is missing or empty; give at least one message.", param="messages")
        _check_length("messages", self.messages, limits.max_messages)
        _check_length("documents", self.documents or (), limits.max_messages)
        self.messages[:] = [_checked(index, message) for index, message in enumerate(self.messages)]
        if self.chat_template is not None:
            raise RequestError(
                "chat_template is not accepted in a request; start the server with --chat-template.",
                param="chat_template",
            )
        self._check_tools()
        if self.add_generation_prompt and self.continue_final_message:
            raise RequestError(
                "add_generation_prompt and continue_final_message exclude each other; set only one.",
                param="continue_final_message",
            )
        for name in self.chat_template_kwargs or {}:
            if name in RESERVED:
                raise RequestError(
                    f"chat_template_kwargs may not set '{name}'; use the request's own fields.",
                    param="chat_template_kwargs",
                )

    def _check_tools(self) -> None:
        """Refuse tools, unless the request says that none may be called."""
        if self.tools and self.tool_choice != "none":
            raise RequestError("tools are not served; leave them out or set tool_choice to 'none'.", param="tools")
        names_tool = self.tool_choice not in (None, "none", "auto")
        if names_tool and not self.tools:
            raise RequestError(
                "tool_choice names a tool, but tools are not served; set it to 'none'.", param="tool_choice"
            )

    @property
    def opens_answer(self) -> bool:
        """Whether the rendered prompt ends where a new answer begins."""
        if self.add_generation_prompt is not None:
            return self.add_generation_prompt
        return not self.continue_final_message

    def template_variables(self) -> dict[str, Any]:
        """Further variables for the template."""
        variables = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None:
            variables.setdefault("reasoning_effort", self.reasoning_effort)
        return variables


def message_text(message: Message) -> str:
    """The text of a checked message."""
    content = message["content"]
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _check_length(name: str, entries: Sequence[object], most: int) -> None:
    if len(entries) > most:
        raise RequestError(f"{name} has {len(entries)} entries; expected at most {most} (--max-messages).", param=name)


def _checked(index: int, message: Message) -> Message:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(
            f"messages[{index}] has no role; expected 'system', 'user' or 'assistant'.", param="messages"
        )
    content = message.get("content")
    if content is None and role == "assistant":
        return {**message, "content": ""}
    if isinstance(content, str):
        return message
    if not isinstance(content, list):
        raise RequestError(f"messages[{index}].content must be a string or a list of text parts.", param="messages")
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise RequestError(
                f"messages[{index}].content[{number}] is of type {kind!r}; this model takes parts of type 'text' only.",
                param="messages",
            )
        if not isinstance(part.get("text"), str):
            raise RequestError(f"messages[{index}].content[{number}].text must be a string.", param="messages")
    return message
