"""Bodies of /v1/chat/completions. Owns: their Structs and what can be checked without a model. Called by: its route."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from core.api.config import ServerLimits
from core.api.errors import RequestError
from core.api.explanation import Explanation
from core.api.sampling_params import SamplingParams
from core.serving.protocol.messages import Conversation, Message
from core.serving.protocol.sampling import GenerationRequest, Int32
from core.serving.protocol.usage import Usage

UNSERVED = ("audio", "function_call", "functions", "prediction", "verbosity", "web_search_options")


class ChatRequest(GenerationRequest, Conversation, forbid_unknown_fields=True, kw_only=True):
    """A conversation to continue. The fields named in `UNSERVED` are refused unless they are null."""

    messages: list[Message] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    reasoning_effort: str | None = None

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
    prediction: Any = None
    verbosity: Any = None
    web_search_options: Any = None

    def check(self, max_logprobs: int, limits: ServerLimits) -> None:
        """Refuse what cannot be served, before the template runs. max_logprobs: the server's limit, -1 for none."""
        self.check_shared(limits)
        self.check_conversation(limits)
        for name in UNSERVED:
            if getattr(self, name):
                raise RequestError(f"{name} is not served; leave it out.", param=name)
        if self.modalities and self.modalities != ["text"]:
            raise RequestError(f"modalities is {self.modalities!r}; only ['text'] is served.", param="modalities")
        if self.top_logprobs is None:
            return
        if not self.logprobs and self.top_logprobs:
            raise RequestError("top_logprobs needs logprobs to be true.", param="top_logprobs")
        if self.top_logprobs < -1 or -1 < max_logprobs < self.top_logprobs:
            raise RequestError(
                f"top_logprobs is {self.top_logprobs}; expected 0 to {max_logprobs} (the server's --max-logprobs).",
                param="top_logprobs",
            )

    def params(self, defaults: dict[str, Any]) -> SamplingParams:
        """Sampling parameters; without a limit of its own the answer may fill the context."""
        limit = self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens
        return self.shared_params(
            defaults,
            max_tokens=defaults.get("max_tokens") if limit is None else limit,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            prompt_logprobs=self.prompt_logprobs,
        )


class TopLogprob(msgspec.Struct):
    """bytes: the token's UTF-8 bytes, which may be a part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    """One token of the answer with the most likely ones at its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """One entry a token."""

    content: list[TokenLogprob]
    refusal: None = None


class ChatMessage(msgspec.Struct):
    """The answer."""

    role: str
    content: str
    refusal: None = None


class ChatChoice(msgspec.Struct, omit_defaults=True):
    """One whole answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | UnsetType = UNSET


class ChatResponse(msgspec.Struct, omit_defaults=True):
    """The whole answer to a request that is not streamed."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: list[Any] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    explain: Explanation | UnsetType = UNSET


class Delta(msgspec.Struct, omit_defaults=True):
    """The new part of an answer."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, omit_defaults=True):
    """The new part of one choice."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, omit_defaults=True):
    """One event of a stream."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    explain: Explanation | list[Explanation] | UnsetType = UNSET
