"""Translation of a body in Anthropic's shape into the equivalent chat request.

Owns: that translation, and refusing fields that have no counterpart. Never does: check what the chat request checks
itself, render, or tokenize. Called by: `core_apis.prepare.preparation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from core.api.errors import RequestError, nearest
from core_apis.anthropic.conversation import ChatMessages
from core_apis.anthropic.tools import chat_tool, chat_tool_choice
from core_apis.protocol.anthropic import (
    NEUTRAL,
    REFUSED,
    ContextManagement,
    CountTokensRequest,
    MessagesRequest,
    OutputFormat,
    Thinking,
)
from core_apis.protocol.chat import ChatRequest
from core_apis.protocol.messages import Message
from core_tokens.chat.chat_template import ChatTemplate

PASSED_ON = (
    *("temperature", "top_p", "top_k", "max_tokens", "stream"),
    *("energy", "explain", "receipt", "service_tier", "session", "timings"),
)
"""Fields of the same name and meaning in both shapes."""

FIELD_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "continue_final_message": "messages",
        "prompt": "messages",
        "reasoning_effort": "output_config.effort",
        "response_format": "output_config.format",
        "stop": "stop_sequences",
        "thinking_token_budget": "thinking.budget_tokens",
        "tools[].function.parameters": "tools[].input_schema",
        "tools[].function": "tools[]",
        "user": "metadata.user_id",
    }
)
"""The field of Anthropic's body that each field of the chat request comes from, for error messages."""

KNOWN = frozenset(MessagesRequest.__struct_fields__)

EMPTY = (b"null", b"[]", b"{}")
"""JSON values that mean a field is not used."""

THINKING = ("enabled", "adaptive", "disabled")
DISPLAYS = (None, "summarized", "omitted")
CLEAR_THINKING = "clear_thinking_20251015"
NO_THINKING = "none"

_USER_MARK = "\ue000user\ue000"
_SYSTEM_MARK = "\ue000system\ue000"


def check_fields(given: Mapping[str, msgspec.Raw]) -> list[str]:
    """Return the names of a body's unknown fields. Raises RequestError for refused fields, unless they are empty."""
    unknown: list[str] = []
    for name, value in given.items():
        if name in REFUSED and bytes(value) not in EMPTY:
            raise RequestError(f"{name} is not served: {REFUSED[name]}. Leave it out.", param=name)
        if name not in KNOWN and name not in NEUTRAL and name not in REFUSED:
            unknown.append(name)
    return unknown


def shows_late_system(template: ChatTemplate) -> bool:
    """Whether a template renders a system message in place when it follows a user's message.

    Some templates refuse it, and some move it to the start, where each new one would change the whole prompt after it.
    """
    probe = [{"role": "user", "content": _USER_MARK}, {"role": "system", "content": _SYSTEM_MARK}]
    try:
        text = template.render(probe)
    except RequestError:
        return False
    user = text.find(_USER_MARK)
    system = text.find(_SYSTEM_MARK)
    return -1 < user < system


def chat_request(body: CountTokensRequest, *, late_system: bool) -> ChatRequest:
    """Translate a body into a chat request. late_system: see `shows_late_system`. Raises RequestError."""
    chat = ChatRequest(
        model=body.model,
        messages=_messages(body, late_system=late_system),
        tools=[chat_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.tools or ())] or None,
        reasoning_effort=_effort(body),
        response_format=_response_format(body),
    )
    if body.tool_choice is not None:
        chat.tool_choice = chat_tool_choice(body.tool_choice)
        if body.tool_choice.disable_parallel_tool_use:
            chat.parallel_tool_calls = False
    last = chat.messages[-1] if chat.messages else None
    if last is not None and last["role"] == "assistant" and not last.get("tool_calls"):
        chat.continue_final_message = True
    if isinstance(body, MessagesRequest):
        for name in PASSED_ON:
            setattr(chat, name, getattr(body, name))
        chat.stop = body.stop_sequences
        if body.metadata is not None:
            chat.user = body.metadata.user_id
    return chat


def omits_thinking(body: CountTokensRequest) -> bool:
    """Whether the answer comes without the text of its thinking."""
    return body.thinking is not None and body.thinking.display == "omitted"


def thinking_budget(body: CountTokensRequest) -> int | None:
    """Return the maximum number of thinking tokens, or None. A model that does not think satisfies any limit."""
    thinking = body.thinking
    return thinking.budget_tokens if thinking is not None and thinking.type == "enabled" else None


def _messages(body: CountTokensRequest, *, late_system: bool) -> list[Message]:
    made = ChatMessages(late_system=late_system)
    if body.system is not None:
        made.system(body.system, "system")
    first_kept = _first_with_thinking(body)
    for index, turn in enumerate(body.messages):
        made.turn(turn, f"messages[{index}]", keeps_thinking=index >= first_kept)
    return made.messages


def _first_with_thinking(body: CountTokensRequest) -> int:
    """Return the index of the first message whose thinking is kept."""
    keep = _kept_turns(body.context_management)
    if keep is None:
        return 0
    answers = [index for index, turn in enumerate(body.messages) if turn.role == "assistant"]
    if len(answers) <= keep:
        return 0
    return answers[-keep]


def _kept_turns(management: ContextManagement | None) -> int | None:
    """Return how many of the last answers keep their thinking; None: all of them."""
    kept: int | None = None
    for edit in management.edits if management is not None else ():
        if edit.type != CLEAR_THINKING:
            raise RequestError(
                f"context_management has an edit of type {edit.type!r}; only '{CLEAR_THINKING}' is served. Leave it out, and "
                "shorten the conversation where it is made.",
                param="context_management",
            )
        kind = edit.keep.get("type") if isinstance(edit.keep, dict) else edit.keep
        if kind in (None, "all"):
            continue
        value = edit.keep.get("value") if isinstance(edit.keep, dict) else None
        if kind != "thinking_turns" or not isinstance(value, int) or value < 1:
            raise RequestError(
                f"context_management has an edit that keeps {edit.keep!r}; expected 'all', or type 'thinking_turns' with a "
                "value of at least 1.",
                param="context_management",
            )
        kept = value
    return kept


def _effort(body: CountTokensRequest) -> str | None:
    """Return the reasoning effort, by the chat API's name."""
    if body.thinking is not None:
        _check_thinking(body.thinking)
        if body.thinking.type == "disabled":
            return NO_THINKING
    return body.output_config.effort if body.output_config is not None else None


def _check_thinking(thinking: Thinking) -> None:
    if thinking.type not in THINKING:
        raise RequestError(
            f"thinking is of type {thinking.type!r}; expected one of: {', '.join(THINKING)}."
            f"{nearest(thinking.type, THINKING)}",
            param="thinking",
        )
    if thinking.type == "enabled" and (thinking.budget_tokens is None or thinking.budget_tokens < 1):
        raise RequestError(
            f"thinking.budget_tokens is {thinking.budget_tokens}; thinking of type 'enabled' needs a number of tokens. Use "
            "'adaptive' for no limit.",
            param="thinking",
        )
    if thinking.display not in DISPLAYS:
        raise RequestError(
            f"thinking.display is {thinking.display!r}; expected 'summarized' (as it is, in full) or 'omitted'.",
            param="thinking",
        )


def _response_format(body: CountTokensRequest) -> dict[str, Any] | None:
    given: OutputFormat | None = body.output_format
    if body.output_config is not None and body.output_config.format is not None:
        given = body.output_config.format
    if given is None:
        return None
    if given.type != "json_schema" or given.schema is None:
        raise RequestError(
            f"The output format is of type {given.type!r}; expected 'json_schema' with a schema.", param="output_config"
        )
    named = {"name": "answer", "schema": given.schema, "strict": True}
    return {"type": "json_schema", "json_schema": named}
