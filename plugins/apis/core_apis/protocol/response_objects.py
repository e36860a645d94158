"""Answers of /v1/responses: the response, its output items and their parts.

Owns: these Structs, in OpenAI's shapes. Never does: fill them (`core_apis.responses` does). Called by: the writer and
the store of responses.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from core_apis.protocol.chat import TokenLogprob
from core_apis.protocol.timings import Timings
from core_frontend.api.explanation import Explanation
from core_observers.energy_use import EnergyUse
from core_observers.receipts.receipt import IssuedReceipt

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
McpStatus = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    """Text for the user. logprobs: one entry per token, if the request includes them."""

    text: str
    annotations: list[Any] = []
    logprobs: list[TokenLogprob] = []


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    """The model's reasoning."""

    text: str


class SummaryText(msgspec.Struct, tag_field="type", tag="summary_text"):
    """The model's reasoning, if the request wants it as a summary. Nothing is left out."""

    text: str


class MessageItem(msgspec.Struct, tag_field="type", tag="message"):
    """A message to the user."""

    id: str
    status: ItemStatus
    content: list[OutputText]
    role: str = "assistant"
    phase: str | UnsetType = UNSET


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning"):
    """Reasoning before a message or a call.

    encrypted_content: the same text in an opaque form that clients send back.
    """

    id: str
    status: ItemStatus
    summary: list[SummaryText]
    content: list[ReasoningText] | UnsetType = UNSET
    encrypted_content: str | UnsetType | None = UNSET


class FunctionCallItem(msgspec.Struct, tag_field="type", tag="function_call"):
    """A function call. call_id: the id that its output has to name. arguments: JSON, unless the call was truncated."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET


class CustomCallItem(msgspec.Struct, tag_field="type", tag="custom_tool_call"):
    """A call of a tool that accepts any text."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    input: str
    namespace: str | UnsetType = UNSET


class McpError(msgspec.Struct, tag_field="type", tag="mcp_tool_execution_error"):
    """Why a call has no output. content: parts of text, as a tool server sends them."""

    content: list[dict[str, str]]


class McpCallItem(msgspec.Struct, tag_field="type", tag="mcp_call"):
    """A call of a tool server's tool, which the server ran. output: None until it has ended, and if it failed."""

    id: str
    status: McpStatus
    server_label: str
    name: str
    arguments: str
    output: str | None = None
    error: McpError | None = None
    approval_request_id: str | None = None


class McpTool(msgspec.Struct):
    """A tool of a tool server, as a request may call it."""

    name: str
    description: str
    input_schema: dict[str, Any]
    annotations: None = None


class McpListItem(msgspec.Struct, tag_field="type", tag="mcp_list_tools"):
    """The tools of one tool server that the model was shown."""

    id: str
    server_label: str
    tools: list[McpTool]
    error: str | None = None


OutputItem = MessageItem | ReasoningItem | FunctionCallItem | CustomCallItem | McpCallItem | McpListItem
CallItem = FunctionCallItem | CustomCallItem


class ResponseFailure(msgspec.Struct):
    """Why a response failed. code: one of OpenAI's."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct):
    """Why a response is incomplete."""

    reason: str


class InputTokensDetails(msgspec.Struct):
    """The split of the input tokens.

    cached_tokens: from the prefix cache. cache_write_tokens: those that a provider would bill for caching.
    """

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct):
    """The split of the output tokens. reasoning_tokens: how many are reasoning."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    """The usage of one response, in tokens."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseObject(msgspec.Struct, kw_only=True):
    """A response, complete or in progress; it repeats the settings of the request. Times are seconds since the epoch.

    explain, receipt, timings, energy: once it has ended, if they were requested.
    """

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    output: list[OutputItem] = []
    usage: ResponseUsage | None = None
    explain: Explanation | UnsetType = UNSET
    receipt: IssuedReceipt | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    energy: EnergyUse | UnsetType = UNSET

    background: bool = False
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: Any = None
    metadata: dict[str, str] = {}
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: Any = None
    reasoning: dict[str, Any] = {}
    safety_identifier: Any = None
    service_tier: str = "default"
    store: bool = True
    temperature: float | None = None
    text: dict[str, Any] = {}
    tool_choice: str | dict[str, Any] = "auto"
    tools: list[dict[str, Any]] = []
    top_logprobs: int = 0
    top_p: float | None = None
    truncation: str = "disabled"
    user: str | None = None


class DeletedResponse(msgspec.Struct):
    """The answer to DELETE."""

    id: str
    object: str = "response"
    deleted: bool = True


class ItemList(msgspec.Struct):
    """A page of items. first_id, last_id: ids of its first and last item; empty if it has none."""

    data: list[msgspec.Raw]
    first_id: str
    last_id: str
    has_more: bool
    object: str = "list"
