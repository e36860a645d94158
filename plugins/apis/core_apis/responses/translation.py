"""Translation of a body of /v1/responses into a chat request.

Owns: that translation, and the names of fields in errors. Never does: render, tokenize or store anything: it is plain
computation. Called by: `core_apis.prepare.preparation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from core.api.errors import RequestError
from core_apis.protocol.chat import ChatRequest
from core_apis.protocol.responses import LOGPROBS, PASSED_ON, ResponsesRequest
from core_apis.responses.conversation import Item, messages_of
from core_apis.responses.kept_items import KeptItems
from core_apis.responses.tools import ChatTools

FIELD_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "documents": "input",
        "max_completion_tokens": "max_output_tokens",
        "max_tokens": "max_output_tokens",
        "messages": "input",
        "prompt": "input",
        "reasoning_effort": "reasoning.effort",
        "response_format": "text.format",
        "tools[].custom": "tools[]",
        "tools[].function": "tools[]",
    }
)
"""The field of this body that each field of the chat request comes from, for error messages."""


def check_history(body: ResponsesRequest, kept: KeptItems) -> None:
    """Raise RequestError (404) if the body builds on a response that was not looked up for it."""
    if body.previous_response_id is not None and kept.history is None:
        raise RequestError(
            f"The response '{body.previous_response_id}' is not kept; send the whole conversation in input.",
            param="previous_response_id",
            status=404,
            code="previous_response_not_found",
        )


def chat_request(body: ResponsesRequest, items: list[Item], tools: ChatTools) -> ChatRequest:
    """Return the chat request for a checked body. items: history and input. Raises RequestError."""
    fields: dict[str, Any] = {}
    for name in PASSED_ON:
        fields[name] = getattr(body, name)
    messages = messages_of(body.instructions, items)
    if not messages:
        raise RequestError("input has no items; give at least one.", param="input")
    wants_logprobs = body.includes(LOGPROBS)
    return ChatRequest(
        **fields,
        messages=messages,
        tools=tools.tools or None,
        tool_choice=tools.choice,
        reasoning_effort=None if body.reasoning is None else body.reasoning.effort,
        max_completion_tokens=body.max_output_tokens,
        logprobs=wants_logprobs or None,
        top_logprobs=(body.top_logprobs or 0) if wants_logprobs else None,
        response_format=_response_format(body),
        # Deltas even if no client streams: they show which token belongs to which item.
        stream=bool(body.stream or body.background or wants_logprobs),
    )


def _response_format(body: ResponsesRequest) -> dict[str, Any] | None:
    """Translate the text's format: chat requests nest a schema one level deeper."""
    given = None if body.text is None else body.text.format
    if given is None or given.get("type") != "json_schema":
        return given
    inner = {name: value for name, value in given.items() if name != "type"}
    return {"type": "json_schema", "json_schema": inner}
