"""Bodies of /v1/completions.

Owns: their Structs and the checks that need no model. Called by: its route.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from core.api.errors import RequestError
from core.api.sampling_params import SamplingParams
from core_apis.protocol.sampling import GenerationRequest, Int32
from core_apis.protocol.timings import Timings
from core_apis.protocol.usage import Usage
from core_formats.server_limits import ServerLimits
from core_frontend.api.explanation import Explanation
from core_observers.energy_use import EnergyUse
from core_observers.receipts.receipt import IssuedReceipt

DEFAULT_MAX_TOKENS = 16


class CompletionRequest(GenerationRequest, forbid_unknown_fields=True, kw_only=True):
    """Prompts to continue.

    prompt: text, token ids, or a list of either. logprobs: number of most likely tokens to report.
    prompt_embeds: prompts that are embeddings, which come before those of `prompt`: base64 of a tensor in a file of
        torch.save or safetensors, or a list of these.
    max_completion_tokens: as in chats, in place of `max_tokens`: llm-d's sidecar sends both.
    """

    prompt: str | list[Any] | None = None
    prompt_embeds: str | list[str] | None = None
    max_tokens: Int32 | None = None
    max_completion_tokens: Int32 | None = None
    echo: bool | None = None
    logprobs: Int32 | None = None
    best_of: Int32 | None = None
    suffix: str | None = None

    def check(self, limits: ServerLimits) -> None:
        """Refuse requests that cannot be served, before anything is tokenized."""
        self.check_shared(limits)
        if self.mm_processor_kwargs:
            raise RequestError(
                "mm_processor_kwargs is of pictures, and completions have none; leave it out.",
                param="mm_processor_kwargs",
            )
        if self.suffix:
            raise RequestError("suffix is not served: this model completes only at the end.", param="suffix")
        if self.echo and self.embedded:
            raise RequestError(
                "echo repeats the text of a prompt, and prompt_embeds has none; leave it out.", param="echo"
            )
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise RequestError(
                f"best_of is {self.best_of}; only the value of n ({self.n or 1}) is served. Leave it out.",
                param="best_of",
            )

    @property
    def limit(self) -> int:
        """Return the limit on an answer's tokens."""
        limit = self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens
        return DEFAULT_MAX_TOKENS if limit is None else limit

    @property
    def prompt_only(self) -> bool:
        """Whether the client wants its own prompt scored and nothing generated."""
        return bool(self.echo) and self.limit == 0

    def params(self, defaults: dict[str, Any]) -> SamplingParams:
        """Return the sampling parameters.

        A prompt that is only scored still samples one token, which the answer leaves out.
        """
        prompt_logprobs = self.prompt_logprobs
        if self.echo and self.logprobs is not None and prompt_logprobs is None:
            prompt_logprobs = self.logprobs
        return self.shared_params(
            defaults,
            max_tokens=1 if self.prompt_only else self.limit,
            logprobs=self.logprobs,
            prompt_logprobs=prompt_logprobs,
        )

    @property
    def embedded(self) -> list[str]:
        """Return the prompts that are embeddings."""
        given = self.prompt_embeds
        return [given] if isinstance(given, str) else given or []

    def prompts(self) -> list[str | list[int]]:
        """Return the other prompts as a list; each is text or token ids and never empty."""
        if self.embedded and self.prompt in (None, "", []):
            return []
        if self.prompt is None:
            raise RequestError(
                "The field 'prompt' is missing; the request needs it.", param="prompt", code="missing_field"
            )
        if isinstance(self.prompt, list) and self.prompt and isinstance(self.prompt[0], str | list):
            return [_one_prompt(item) for item in self.prompt]
        return [_one_prompt(self.prompt)]


def _one_prompt(item: Any) -> str | list[int]:
    if isinstance(item, str) and item:
        return item
    # Without a step of the interpreter for each id: less than half of the time, and histories have many.
    if isinstance(item, list) and item and list(map(type, item)).count(int) == len(item) and min(item) >= 0:
        return item
    if item in ("", []):
        raise RequestError("prompt is empty; give at least one token of text.", param="prompt", code="empty_prompt")
    raise RequestError(
        "prompt must be a string, a list of strings, a list of token ids (integers from 0), or a list of such lists.",
        param="prompt",
        code="invalid_type",
    )


class CompletionLogprobs(msgspec.Struct):
    """The log probabilities of a completion, one entry per token.

    text_offset: characters from the start of the returned text.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, omit_defaults=True):
    """One completion, or in a stream its new part. sampling_mask, routed_experts: see `core_apis.answers.told_facts`."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: list[Any] | UnsetType = UNSET
    sampling_mask: list[list[int]] | UnsetType = UNSET
    routed_experts: str | UnsetType = UNSET


class CompletionResponse(msgspec.Struct, omit_defaults=True):
    """The whole answer, and every chunk of a stream.

    explain, receipt, timings: lists with one entry per prompt, if there are several prompts.
    kv_transfer_params: of a request with do_remote_decode whose blocks are leased.
    system_fingerprint: see --fingerprint-mode.
    """

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    explain: Explanation | list[Explanation] | UnsetType = UNSET
    receipt: IssuedReceipt | list[IssuedReceipt] | UnsetType = UNSET
    timings: Timings | list[Timings] | UnsetType = UNSET
    energy: EnergyUse | list[EnergyUse] | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    kv_transfer_params: dict[str, Any] | UnsetType = UNSET
