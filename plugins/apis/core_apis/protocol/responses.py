"""Bodies of /v1/responses.

Owns: their Struct and the checks that need no model. Called by: `Preparation`.

Clients add fields from week to week: unknown fields are left out and reported, fields that would change the answer are
refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec

from core.api.errors import RequestError
from core_apis.protocol.sampling import Int32, ServiceTier, SessionName
from core_formats.server_limits import ServerLimits

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "conversation": "conversations are not kept; name a previous_response_id, or send all items in input",
        "prompt": "prompt templates are not kept; send instructions and input",
        "context_management": "nothing is shortened or compacted here; send the items that are to be read",
        "moderation": "this server moderates nothing; leave it out",
    }
)
"""Fields that would change the answer and are not supported, with what to do instead."""

NEUTRAL: Mapping[str, str] = MappingProxyType(
    {
        "client_metadata": "what a client says about itself",
        "prompt_cache_key": "prefixes are found by their content",
        "prompt_cache_options": "prefixes are kept as long as there is room",
        "prompt_cache_retention": "prefixes are kept as long as there is room",
        "safety_identifier": "for the accounting of a provider",
        "stream_options": "events are not padded",
    }
)
"""Fields that are known and change nothing, with the reason."""

PASSED_ON = (
    "allowed_token_ids",
    "bad_words",
    "cache_salt",
    "chat_template_kwargs",
    "energy",
    "explain",
    "frequency_penalty",
    "ignore_eos",
    "logit_bias",
    "min_p",
    "min_tokens",
    "model",
    "parallel_tool_calls",
    "presence_penalty",
    "priority",
    "receipt",
    "repetition_penalty",
    "seed",
    "service_tier",
    "session",
    "stop",
    "stop_token_ids",
    "temperature",
    "timeout",
    "timings",
    "top_k",
    "top_p",
    "user",
)
"""Fields that mean the same in a chat request."""

ENCRYPTED_REASONING = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"
INCLUDABLE = (
    ENCRYPTED_REASONING,
    LOGPROBS,
    # Parts of items of hosted tools and of images, which no answer has.
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
)

MOST_METADATA = 16
LONGEST_KEY = 64
LONGEST_VALUE = 512
"""Maximum number of metadata entries, and of characters in each, as in OpenAI's API."""

Name = Annotated[str, msgspec.Meta(max_length=LONGEST_KEY)]
Value = Annotated[str, msgspec.Meta(max_length=LONGEST_VALUE)]


class ReasoningOptions(msgspec.Struct):
    """How the model reasons. effort: as in the chat template. summary: whether reasoning is reported as a summary.

    generate_summary: the older name of `summary`.
    """

    effort: str | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class TextOptions(msgspec.Struct):
    """The form of the text.

    format: {type: text, json_object or json_schema, ...}. verbosity: accepted; no template has it.
    """

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """An input to answer.

    Fields under OpenAI's names, then vLLM's, then this server's (`explain`, `receipt`, `timings`, `energy`). None always means:
    not given.
    """

    model: str | None = None
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    store: bool | None = None
    stream: bool | None = None
    include: list[str] | None = None
    max_output_tokens: Int32 | None = None
    metadata: dict[Name, Value] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    temperature: float | None = None
    text: TextOptions | None = None
    tool_choice: str | dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    top_logprobs: Int32 | None = None
    top_p: float | None = None
    truncation: Literal["auto", "disabled"] | None = None
    user: str | None = None

    allowed_token_ids: list[Int32] | None = None
    bad_words: list[str] | None = None
    cache_salt: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    frequency_penalty: float | None = None
    ignore_eos: bool | None = None
    logit_bias: dict[int, float] | None = None
    min_p: float | None = None
    min_tokens: Int32 | None = None
    presence_penalty: float | None = None
    priority: Int32 | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    session: SessionName | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Int32] | None = None
    timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None
    top_k: Int32 | None = None
    explain: bool | None = None
    receipt: bool | None = None
    timings: bool | None = None
    energy: bool | None = None

    max_tool_calls: Any = None

    client_metadata: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    safety_identifier: Any = None
    service_tier: ServiceTier | None = None
    stream_options: Any = None

    context_management: Any = None
    conversation: Any = None
    moderation: Any = None
    prompt: Any = None

    @property
    def stored(self) -> bool:
        """Whether the answer can be retrieved later."""
        return self.store is not False

    @property
    def tells_summary(self) -> bool:
        """Whether reasoning is reported as a summary."""
        options = self.reasoning
        return options is not None and bool(options.summary or options.generate_summary)

    def includes(self, name: str) -> bool:
        """Whether the answer includes the part with this name."""
        return name in (self.include or ())

    def check(self, limits: ServerLimits) -> None:
        """Refuse requests that cannot be served, before anything else is done. Raises RequestError."""
        for name, why in REFUSED.items():
            if getattr(self, name):
                raise RequestError(f"{name} is not served: {why}.", param=name)
        if self.input is None:
            raise RequestError("input is missing; give a text, or a list of items.", param="input")
        if isinstance(self.input, list) and len(self.input) > limits.max_messages:
            raise RequestError(
                f"input has {len(self.input)} items; expected at most {limits.max_messages} (--max-messages).",
                param="input",
            )
        for name in self.include or ():
            if name not in INCLUDABLE:
                raise RequestError(
                    f"include names {name!r}; expected some of {', '.join(INCLUDABLE)}.", param="include"
                )
        if self.background and not self.stored:
            raise RequestError(
                "background needs store to be true: the answer is asked for later. Leave store out.", param="store"
            )
        if len(self.metadata or ()) > MOST_METADATA:
            raise RequestError(
                f"metadata has {len(self.metadata or ())} entries; expected at most {MOST_METADATA}.", param="metadata"
            )


def unknown_fields(names: Iterable[str]) -> list[str]:
    """Return the field names of a body that no request has."""
    return [name for name in names if name not in ResponsesRequest.__struct_fields__]


class InputReference(msgspec.Struct):
    """An item of the input, reduced to the fields that may refer to another item."""

    type: str | None = None
    id: str | None = None


class Reference(msgspec.Struct):
    """The references of a body to stored items, read before the body is prepared."""

    previous_response_id: str | None = None
    input: str | list[InputReference] | None = None
