"""Bodies of /v1/messages and /v1/messages/count_tokens, in Anthropic's shape.

Owns: their Structs, the types of content blocks, which other fields are neutral and which are refused. Never does:
translate them (`core_apis.anthropic.chat` does). Called by: that translation, the OpenAPI document.

Clients of this API add fields every few weeks: unknown fields are tolerated and logged once, unlike those in `REFUSED`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from core_apis.protocol.sampling import Int32, ServiceTier, SessionName

NEUTRAL: Mapping[str, str] = MappingProxyType(
    {
        "betas": "features are known by their fields",
        "billing_policy": "nothing is billed",
        "cache_control": "the prefix cache keeps every prompt",
        "diagnostics": "asks only for more in the answer",
        "fallback_credit_token": "nothing is billed",
        "inference_geo": "there is one place",
        "speed": "there is one speed",
        "user_profile_id": "accounting",
        "workspace_id": "accounting",
    }
)
"""Fields that are accepted and change nothing, with the reason."""

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "compaction": "the client has to shorten the conversation itself",
        "container": "this server runs no code",
        "fallbacks": "this server has one model",
        "mcp_servers": "this server calls no tools; let the client call them",
        "thread": "this server keeps no conversations; send all messages",
    }
)
"""Fields whose effect the answer could not have, each with the way out."""


class Metadata(msgspec.Struct):
    """Metadata of a request. user_id: the user of the request, for the fair policy."""

    user_id: str | None = None


class Thinking(msgspec.Struct):
    """Whether the model thinks before it answers.

    type: `enabled`, `disabled` or `adaptive` (the model decides).
    budget_tokens: maximum number of thinking tokens, with `enabled`.
    display: `omitted` leaves the text of the thinking out of the answer.
    """

    type: str
    budget_tokens: Int32 | None = None
    display: str | None = None


class OutputFormat(msgspec.Struct):
    """The format of the answer's text. type: `json_schema`."""

    type: str
    schema: dict[str, Any] | None = None


class OutputConfig(msgspec.Struct, forbid_unknown_fields=True):
    """Settings of the output. effort: how much to think. format: of the answer's text."""

    effort: str | None = None
    format: OutputFormat | None = None


class ToolChoice(msgspec.Struct):
    """The choice among the tools. type: `auto`, `any`, `tool` (the one called `name`) or `none`."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Tool(msgspec.Struct):
    """A tool that the client runs.

    type: `custom` or None; all others are refused.
    input_schema: JSON schema of its arguments.
    strict: whether the arguments have to match the schema.
    defer_loading: refused; all tools are in the prompt.
    allowed_callers: only `direct`.
    """

    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    input_examples: list[dict[str, Any]] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None


class ContextEdit(msgspec.Struct):
    """A change of the conversation.

    type: `clear_thinking_20251015`. keep: `all`, or how many turns keep their thinking.
    """

    type: str
    keep: Any = None


class ContextManagement(msgspec.Struct, forbid_unknown_fields=True):
    """The changes to make to the conversation before it reaches the model."""

    edits: list[ContextEdit] = msgspec.field(default_factory=list)


class Turn(msgspec.Struct):
    """A message. role: `user`, `assistant` or `system`. content: text, or blocks of the types in `BLOCKS`."""

    role: str
    content: str | list[dict[str, Any]]


class CountTokensRequest(msgspec.Struct, kw_only=True):
    """A conversation whose tokens are counted: only the fields that affect its prompt."""

    model: str | None = None
    messages: list[Turn]
    system: str | list[dict[str, Any]] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    context_management: ContextManagement | None = None


class MessagesRequest(CountTokensRequest, kw_only=True):
    """A conversation to continue.

    max_tokens: may be more than the context has room for.
    explain, timings: whether the answer reports how it came about, and how long it took; fields of this server.
    receipt, energy: whether the answer has a receipt, and says what it took; fields of this server.
    session: name of a session, whose earlier answers keep their tokens; a field of this server.
    service_tier: `flex`, which is this server's own value, is the batch class.
    """

    max_tokens: Int32
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int32 | None = None
    stream: bool | None = None
    metadata: Metadata | None = None
    explain: bool | None = None
    receipt: bool | None = None
    session: SessionName | None = None
    timings: bool | None = None
    energy: bool | None = None
    service_tier: ServiceTier | None = None


class TextBlock(msgspec.Struct):
    """A block of text."""

    text: str


class ThinkingBlock(msgspec.Struct):
    """Thinking of an earlier answer. signature: as it was answered."""

    thinking: str
    signature: str = ""


class RedactedThinkingBlock(msgspec.Struct):
    """Thinking that only the provider that wrote it can read."""


class ToolUseBlock(msgspec.Struct):
    """A tool call of an earlier answer."""

    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(msgspec.Struct):
    """The result of a tool call. content: text, or blocks of the types in `RESULT_BLOCKS`."""

    tool_use_id: str
    content: str | list[dict[str, Any]] | None = None
    is_error: bool | None = None


class DocumentSource(msgspec.Struct):
    """The content of a document. type: `text`, with data, or `content`, with text or text blocks."""

    type: str
    data: str | None = None
    content: str | list[dict[str, Any]] | None = None


class Citations(msgspec.Struct):
    """Whether the answer should cite a document. enabled: refused."""

    enabled: bool | None = None


class DocumentBlock(msgspec.Struct):
    """A document of plain text. context: what it is about."""

    source: DocumentSource
    title: str | None = None
    context: str | None = None
    citations: Citations | None = None


class SearchResultBlock(msgspec.Struct):
    """A result of a search that the client has run. source: where the result comes from."""

    source: str
    title: str
    content: list[dict[str, Any]]
    citations: Citations | None = None


class ImageSource(msgspec.Struct):
    """A picture. type: `base64`, with data and its media_type, or `url`."""

    type: str
    media_type: str = ""
    data: str | None = None
    url: str | None = None


class ImageBlock(msgspec.Struct):
    """A block with a picture."""

    source: ImageSource


RESULT_BLOCKS: Mapping[str, type[msgspec.Struct]] = MappingProxyType(
    {
        "text": TextBlock,
        "document": DocumentBlock,
        "search_result": SearchResultBlock,
        "image": ImageBlock,
    }
)

BLOCKS: Mapping[str, Mapping[str, type[msgspec.Struct]]] = MappingProxyType(
    {
        "system": {"text": TextBlock},
        "user": {**RESULT_BLOCKS, "tool_result": ToolResultBlock},
        "assistant": {
            "text": TextBlock,
            "thinking": ThinkingBlock,
            "redacted_thinking": RedactedThinkingBlock,
            "tool_use": ToolUseBlock,
        },
    }
)
"""The types of blocks that messages of each role may hold."""
