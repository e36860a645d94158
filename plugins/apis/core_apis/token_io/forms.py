"""Bodies and answers of /inference/v1/generate, of the paths that end with /render, and of those that end with /derender.

Owns: their Structs. Called by: `core_apis.token_io.bodies`, the writer, the routes.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from core_apis.protocol.chat import ChatRequest
from core_apis.protocol.completions import CompletionRequest
from core_apis.protocol.sampling import Int32, RequestId, StreamOptions
from core_apis.protocol.timings import Timings
from core_apis.protocol.transfer_params import TransferParams
from core_apis.protocol.usage import Usage
from core_frontend.api.explanation import Explanation
from core_observers.energy_use import EnergyUse
from core_observers.receipts.receipt import IssuedReceipt

TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
OutputMode = Literal["tokens", "text"]


class AnyBody(msgspec.Struct):
    """A body of /invocations, which is that of another path."""


class AnyAnswer(msgspec.Struct):
    """The answer of the path that a body of /invocations is meant for."""


class GenerateRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Token ids to continue.

    sampling_params: fields of `SamplingParams`; those that are left out are the model's own, and max_tokens is what the
        context leaves.
    output_mode: whether texts come with the token ids.
    return_token_ids: whether the answer repeats the prompt.
    kv_transfer_params: what becomes of the prompt's keys and values, as in a completion.

    The last fields are refused unless they are null or empty.
    """

    token_ids: list[TokenId]
    sampling_params: dict[str, Any] = {}
    request_id: RequestId | None = None
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    priority: Int32 = 0
    output_mode: OutputMode = "tokens"
    return_token_ids: bool | None = None
    kv_transfer_params: TransferParams | None = None

    token_offsets: Any = None
    features: Any = None
    content_parts: Any = None
    ec_transfer_params: Any = None
    reasoning_ended: Any = None
    reasoning_parser_kwargs: Any = None


class TokenScore(msgspec.Struct):
    """A token with its log probability."""

    token_id: int
    logprob: float
    rank: int | None = None


class ScoredToken(msgspec.Struct):
    """A token of an answer with its log probability, and the most likely ones at its place, itself first."""

    token_id: int
    logprob: float
    rank: int | None = None
    top_logprobs: list[TokenScore] = []


class TokenLogprobs(msgspec.Struct):
    """The log probabilities of an answer, one entry a token."""

    content: list[ScoredToken] | None = None


class GenerateChoice(msgspec.Struct, omit_defaults=True):
    """One answer, or in a stream its new part.

    logprobs: `TokenLogprobs`; with `output_mode` text those of a chat. text: with `output_mode` text.
    sampling_mask, routed_experts: see `core_apis.answers.told_facts`.
    """

    index: int
    token_ids: list[TokenId]
    finish_reason: str | None
    stop_reason: int | str | None
    logprobs: Any
    text: str | UnsetType = UNSET
    sampling_mask: list[list[int]] | UnsetType = UNSET
    routed_experts: str | UnsetType = UNSET


class GenerateResponse(msgspec.Struct, omit_defaults=True):
    """The whole answer, and every chunk of a stream. explain, receipt, timings, energy: never set.

    kv_transfer_params: of a request with do_remote_decode whose blocks are leased.
    """

    request_id: str
    model: str
    created: int
    choices: list[GenerateChoice]
    output_mode: OutputMode | UnsetType = UNSET
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: list[Any] | UnsetType = UNSET
    kv_transfer_params: dict[str, Any] | UnsetType = UNSET
    explain: Explanation | list[Explanation] | UnsetType = UNSET
    receipt: IssuedReceipt | list[IssuedReceipt] | UnsetType = UNSET
    timings: Timings | list[Timings] | UnsetType = UNSET
    energy: EnergyUse | list[EnergyUse] | UnsetType = UNSET


class GivenChoice(msgspec.Struct):
    """An answer of /inference/v1/generate, as far as it is read."""

    index: int
    token_ids: list[TokenId]
    finish_reason: str | None = "stop"
    stop_reason: int | str | None = None
    logprobs: TokenLogprobs | None = None


class GivenAnswer(msgspec.Struct):
    """The answers of one prompt, as far as they are read."""

    choices: list[GivenChoice]
    request_id: str = ""
    created: int | None = None
    output_mode: Literal["tokens"] = "tokens"


class DerenderChat(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Token ids to read as the answer of a chat.

    chat_request: the body that was rendered. model: replaces its model.
    prompt_tokens, prompt_token_ids: change nothing, as the prompt is rendered again.
    """

    generate_response: GivenAnswer
    chat_request: ChatRequest
    model: str | None = None
    stream: Literal[False] = False
    prompt_tokens: int | None = None
    prompt_token_ids: list[TokenId] | None = None


class DerenderCompletion(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Token ids to read as the answers of the prompts of a completion, in order. See `DerenderChat`."""

    generate_responses: list[GivenAnswer]
    completion_request: CompletionRequest
    model: str | None = None
    stream: Literal[False] = False
    prompt_tokens: list[int] | None = None
    prompt_token_ids: list[list[TokenId] | None] | None = None
