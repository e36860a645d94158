"""Bodies of /v1/chat/completions.

Owns: their Structs and the checks that need no model. Called by: its route.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from core.api.errors import RequestError
from core.api.sampling_params import SamplingParams
from core_apis.protocol.messages import Conversation, Message
from core_apis.protocol.sampling import GenerationRequest, Int32
from core_apis.protocol.timings import Timings
from core_apis.protocol.usage import Usage
from core_formats.server_limits import ServerLimits
from core_formats.tool_use import ToolUse
from core_frontend.api.explanation import Explanation
from core_observers.energy_use import EnergyUse
from core_observers.receipts.receipt import IssuedReceipt

UNSERVED: Mapping[str, str] = {
    "audio": "leave it out",
    "function_call": "write tool_choice",
    "functions": "write tools",
    "prediction": "leave it out",
    "prompt_embeds": "/v1/completions takes embeddings, of a prompt behind its template",
    "verbosity": "leave it out",
    "web_search_options": "leave it out",
}
"""Fields that are refused unless they are null, each with the way out."""

BUDGETS = ("thinking_token_budget", "max_thinking_tokens", "thinking_budget")
"""Names of the same limit, in order of precedence."""
NO_LIMIT = -1


class ChatRequest(GenerationRequest, Conversation, forbid_unknown_fields=True, kw_only=True):
    """A conversation to continue.

    include_reasoning: false leaves reasoning out of the answer; the model still reasons.
    """

    messages: list[Message] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: Int32 | None = None
    max_thinking_tokens: Int32 | None = None
    thinking_budget: Int32 | None = None

    max_tokens: Int32 | None = None
    max_completion_tokens: Int32 | None = None
    logprobs: bool | None = None
    top_logprobs: Int32 | None = None
    echo: bool | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[str] | None = None

    audio: Any = None
    function_call: Any = None
    functions: Any = None
    prompt_embeds: Any = None
    prediction: Any = None
    verbosity: Any = None
    web_search_options: Any = None

    @property
    def reasoning_limit_name(self) -> str:
        """Return the name of the field that limits reasoning; empty if none does."""
        return next((name for name in BUDGETS if getattr(self, name) is not None), "")

    @property
    def reasoning_limit(self) -> int | None:
        """Return the maximum number of reasoning tokens, or None."""
        name = self.reasoning_limit_name
        limit: int | None = getattr(self, name) if name else None
        return None if limit == NO_LIMIT else limit

    def check(self, max_logprobs: int, limits: ServerLimits, *, shows_uncallable: bool = False) -> ToolUse:
        """Refuse requests that cannot be served, before the template runs. Return the tools that the request offers.

        max_logprobs: the server's limit, -1 for none.
        shows_uncallable: see `TemplateSettings`.
        """
        self.check_shared(limits)
        use = self.check_conversation(limits, shows_uncallable=shows_uncallable)
        for name, way_out in UNSERVED.items():
            if getattr(self, name):
                raise RequestError(f"{name} is not served; {way_out}.", param=name)
        for name in BUDGETS:
            value = getattr(self, name)
            if value is not None and value < NO_LIMIT:
                raise RequestError(
                    f"{name} is {value}; expected a number of tokens, or null or -1 for no limit.", param=name
                )
        if self.modalities and self.modalities != ["text"]:
            raise RequestError(f"modalities is {self.modalities!r}; only ['text'] is served.", param="modalities")
        self._check_logprobs(max_logprobs)
        return use

    def _check_logprobs(self, max_logprobs: int) -> None:
        if self.top_logprobs is None:
            return
        if not self.logprobs and self.top_logprobs:
            raise RequestError("top_logprobs needs logprobs to be true.", param="top_logprobs")
        is_unlimited = max_logprobs == -1
        is_given = 0 <= self.top_logprobs <= max_logprobs
        if is_given or (is_unlimited and self.top_logprobs >= -1):
            return
        expected = (
            "an integer from -1 (all) on" if is_unlimited else f"0 to {max_logprobs} (the server's --max-logprobs)"
        )
        raise RequestError(f"top_logprobs is {self.top_logprobs}; expected {expected}.", param="top_logprobs")

    def params(self, defaults: dict[str, Any]) -> SamplingParams:
        """Return the sampling parameters. Without a limit of its own the answer may fill the context."""
        limit = self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens
        return self.shared_params(
            defaults,
            max_tokens=defaults.get("max_tokens") if limit is None else limit,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            prompt_logprobs=self.prompt_logprobs,
        )


class TopLogprob(msgspec.Struct, gc=False):
    """One of the most likely tokens. bytes: the token's UTF-8 bytes, which may be a part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, gc=False):
    """One token of the answer, with the most likely tokens at its position."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """The log probabilities of an answer, one entry per token."""

    content: list[TokenLogprob]
    refusal: None = None


class FunctionCall(msgspec.Struct, omit_defaults=True):
    """A function call. arguments: JSON, or in a delta a part of it."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class CustomCall(msgspec.Struct, omit_defaults=True):
    """A call of a custom tool. input: its text, or in a delta a part of it."""

    name: str | UnsetType = UNSET
    input: str | UnsetType = UNSET


class ToolCall(msgspec.Struct, omit_defaults=True):
    """A tool call, or in a delta its new part. The first delta of a call has id, type and name.

    index: which call of the answer a delta belongs to.
    incomplete: whether the answer was truncated inside the call, so that its arguments may not be JSON.
    """

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionCall | UnsetType = UNSET
    custom: CustomCall | UnsetType = UNSET
    incomplete: bool = False


class ChatMessage(msgspec.Struct, omit_defaults=True):
    """The message of the answer.

    content: None if there are only calls. reasoning_content: the older name of reasoning.
    """

    role: str
    content: str | None
    refusal: str | UnsetType | None = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, omit_defaults=True):
    """One complete choice. sampling_mask, routed_experts: see `core_apis.answers.told_facts`."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | UnsetType = UNSET
    sampling_mask: list[list[int]] | UnsetType = UNSET
    routed_experts: str | UnsetType = UNSET


class ChatResponse(msgspec.Struct, omit_defaults=True):
    """The whole answer to a request that is not streamed.

    system_fingerprint: see --fingerprint-mode. service_tier: `flex` for one of the batch class.
    kv_transfer_params: of a request with do_remote_decode whose blocks are leased.
    """

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: list[Any] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    explain: Explanation | list[Explanation] | UnsetType = UNSET
    receipt: IssuedReceipt | list[IssuedReceipt] | UnsetType = UNSET
    timings: Timings | list[Timings] | UnsetType = UNSET
    energy: EnergyUse | list[EnergyUse] | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    service_tier: str | UnsetType = UNSET
    kv_transfer_params: dict[str, Any] | UnsetType = UNSET


class Delta(msgspec.Struct, omit_defaults=True):
    """The new part of a message. reasoning_content: the older name of reasoning."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, omit_defaults=True):
    """The new part of one choice. sampling_mask, routed_experts: see `core_apis.answers.told_facts`."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    sampling_mask: list[list[int]] | UnsetType = UNSET
    routed_experts: str | UnsetType = UNSET


class ChatChunk(msgspec.Struct, omit_defaults=True):
    """One event of a stream. system_fingerprint: see --fingerprint-mode at the beginning of the stream."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    explain: Explanation | list[Explanation] | UnsetType = UNSET
    receipt: IssuedReceipt | list[IssuedReceipt] | UnsetType = UNSET
    timings: Timings | list[Timings] | UnsetType = UNSET
    energy: EnergyUse | list[EnergyUse] | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
