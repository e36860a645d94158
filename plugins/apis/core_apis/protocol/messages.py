"""The messages of a conversation, and how the template renders them.

Owns: `Conversation`, the checks and meaning of these fields. Never does: render (`core_tokens.chat.chat_template` does).
Called by: the chat and tokenize bodies.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from core.api.errors import RequestError
from core_config.served.template_settings import EFFORTS, RESERVED, TemplateSettings
from core_formats.server_limits import ServerLimits
from core_formats.tool_use import ToolUse, tool_use
from core_media.reading.parts import ShownPart
from core_tokens.chat.message_forms import REASONING_NAMES

Message = dict[str, Any]

CALL_INPUTS: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "function": ("arguments", (str, dict)),
    "custom": ("input", (str,)),
}
"""The input field of each type of call, and the Python types that it may have."""

SWITCHES = ("enable_thinking", "thinking")
"""Variables that switch reasoning on and off in templates that have no effort."""


class Conversation:
    """The common part of bodies with messages. A mixin: each body declares these fields itself.

    messages: {role, content, ...}; content is text or a list of text parts.
    add_generation_prompt: None means true, unless the final message is to be continued.
    tools, tool_choice, parallel_tool_calls: see `core_formats.tool_use`.
    chat_template_kwargs:  further variables for the template.
    reasoning_effort:      one of `EFFORTS` of the settings: a variable for the template, or its switch of reasoning.
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
    parallel_tool_calls: bool | None
    reasoning_effort: str | None

    def check_conversation(self, limits: ServerLimits, *, shows_uncallable: bool = False) -> ToolUse:
        """Refuse messages and template settings that cannot be served, and bring contents into one form.

        Return the tools that the conversation offers. shows_uncallable: see `TemplateSettings`.
        """
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
        if self.reasoning_effort is not None and self.reasoning_effort not in EFFORTS:
            raise RequestError(
                f"reasoning_effort is {self.reasoning_effort[:100]!r}; expected one of {', '.join(EFFORTS)}.",
                param="reasoning_effort",
            )
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
        return tool_use(
            self.tools, self.tool_choice, self.parallel_tool_calls, limits, shows_uncallable=shows_uncallable
        )

    @property
    def opens_answer(self) -> bool:
        """Whether the rendered prompt ends where a new answer begins."""
        if self.add_generation_prompt is not None:
            return self.add_generation_prompt
        return not self.continue_final_message

    def template_variables(self, read: Collection[str], settings: TemplateSettings) -> dict[str, Any]:
        """Return further variables for a template that reads those in `read`; the settings' where the request has none."""
        variables = dict(self.chat_template_kwargs or {})
        effort = self.reasoning_effort
        if effort is not None:
            variables.setdefault("reasoning_effort", settings.efforts.get(effort, effort))
            if "reasoning_effort" not in read:
                for name in SWITCHES:
                    if name in read:
                        variables.setdefault(name, effort != "none")
        return {**settings.variables, **variables}


def message_text(message: Message) -> str:
    """Return the text of a checked message."""
    content = message["content"]
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if not isinstance(part, ShownPart))


def _check_length(name: str, entries: Sequence[object], most: int) -> None:
    if len(entries) > most:
        raise RequestError(f"{name} has {len(entries)} entries; expected at most {most} (--max-messages).", param=name)


def _checked(index: int, message: Message) -> Message:
    """Return a message in the form that templates receive. Raises RequestError."""
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(
            f"messages[{index}] has no role; expected 'system', 'developer', 'user', 'assistant' or 'tool'.",
            param="messages",
        )
    if role == "function" or message.get("function_call"):
        raise RequestError(
            f"messages[{index}] uses the old form of calls; write tool_calls, and results with the role 'tool'.",
            param="messages",
        )
    if role == "assistant":
        _check_turn(index, message)
    content = message.get("content")
    if content is None and role in ("assistant", "tool"):
        return {**message, "content": ""}
    if not isinstance(content, str):
        _check_parts(index, content)
    return message


def _check_turn(index: int, message: Message) -> None:
    """Check the parts that only the model's own messages have: reasoning and calls."""
    for name in REASONING_NAMES:
        value = message.get(name)
        if value is not None and not isinstance(value, str):
            raise RequestError(f"messages[{index}].{name} must be a string.", param="messages")
    calls = message.get("tool_calls")
    if calls is None:
        return
    if not isinstance(calls, list):
        raise RequestError(f"messages[{index}].tool_calls must be a list of calls.", param="messages")
    for number, call in enumerate(calls):
        _check_call(f"messages[{index}].tool_calls[{number}]", call)


def _check_call(place: str, call: Any) -> None:
    kind = call.get("type", "function") if isinstance(call, dict) else None
    if not isinstance(kind, str) or kind not in CALL_INPUTS:
        raise RequestError(f"{place} is of type {kind!r}; expected 'function' or 'custom'.", param="messages")
    inner = call.get(kind)
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise RequestError(f"{place}.{kind} has no name; expected the name of a tool.", param="messages")
    name, forms = CALL_INPUTS[kind]
    if not isinstance(inner.get(name), forms):
        raise RequestError(f"{place}.{kind}.{name} is missing or of a wrong type; expected text.", param="messages")


def _check_parts(index: int, content: Any) -> None:
    if not isinstance(content, list):
        raise RequestError(f"messages[{index}].content must be a string or a list of text parts.", param="messages")
    for number, part in enumerate(content):
        if isinstance(part, ShownPart):
            continue
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise RequestError(
                f"messages[{index}].content[{number}] is of type {kind!r}; this model takes parts of type 'text' only.",
                param="messages",
            )
        if not isinstance(part.get("text"), str):
            raise RequestError(f"messages[{index}].content[{number}].text must be a string.", param="messages")
