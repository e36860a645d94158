"""The request fields that both completion endpoints share.

Owns: `GenerationRequest` and its translation into `SamplingParams`. Never does: run checks that need the model (the
engine's input processor does). Called by: the completions and chat bodies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec

from core.api.errors import RequestError
from core.api.sampling_params import RequestOutputKind, SamplingParams
from core.api.structured_outputs import StructuredOutputsParams
from core_apis.protocol.beam_fields import check_beams
from core_apis.protocol.structured import FORMAT, GUIDED, OPTIONS, structured_outputs
from core_apis.protocol.transfer_params import TransferParams
from core_formats.server_limits import ServerLimits
from core_frontend.api.sampling_fields import field_names

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
# The patterns exclude a trailing newline, before which "$" also matches.
RequestId = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[A-Za-z0-9_.:\-]{1,128}$(?!\n)",
        description="1 to 128 letters, digits, and characters of '_.:-'; leave it out for an id of the server's",
    ),
]

NAME_WORDS = "1 to 128 letters, digits, and characters of '_.:-', but not '.' or '..'"
"""A session's name in words. Names are part of paths, from which clients remove "." and ".."."""

SessionName = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(?!\.\.?$)[A-Za-z0-9_.:\-]{1,128}$(?!\n)",
        description=f"{NAME_WORDS}; choose such a name for the session",
    ),
]

ServiceTier = Literal["auto", "default", "flex", "priority", "scale", "standard_only"]
"""The class of a request: `flex` is the batch class, `auto` the server's default, and all others are the ordinary class."""

PASSED_ON = field_names(lambda field: field.in_bodies)
"""Fields that are sampling parameters of the same name."""

LISTS = ("stop", "stop_token_ids", "bad_words", "logit_bias", "vllm_xargs")
"""Lists whose entries each cost work, unlike `allowed_token_ids`, which is no longer than the vocabulary."""

NAMES = ("user", "cache_salt")

LENGTHS = ("max_tokens", "max_completion_tokens")
"""Names of the limit on an answer's tokens."""

NEUTRAL: Mapping[str, str] = MappingProxyType(
    {
        "metadata": "what a client notes for itself",
        "store": "completions are not kept; /v1/responses keeps its own",
        "safety_identifier": "for the accounting of a provider",
        "prompt_cache_key": "prefixes are found by their content",
    }
)
"""Fields that are accepted and change nothing, with the reason."""

NEUTRAL_HERE: Mapping[str, str] = MappingProxyType(
    {
        "priority": "orders requests under --scheduling-policy priority, and under no other policy of ours",
        "user": "whose turn it is under --scheduling-policy fair, and whose history `explain` tells of",
        "spaces_between_special_tokens": "the tokenizers here never add spaces of their own",
        "stream_options.include_obfuscation": "events are not padded",
    }
)
"""Fields that change nothing in an answer, or only on some servers, with the reason."""

NOT_SERVED: Mapping[str, tuple[tuple[Any, ...], str]] = MappingProxyType(
    {
        "early_stopping": (
            (False,),
            "a search of beams ends when no running one can become better than those that have ended",
        ),
        "media_io_kwargs": (({},), "the server's --media-io-kwargs counts for all videos"),
        "data_parallel_rank": ((0,), "the prompt chooses the engine"),
        "logprob_token_ids": (
            ([],),
            "score labels with /generative_scoring, or token ids with /inference/v1/generate",
        ),
        "repetition_detection": (({},), "penalties make repetition unlikely"),
    }
)
"""Fields of vLLM's clients that are not supported: the values that are harmless, and why any other is refused."""

CHARACTERS_PER_ENTRY = 16
"""Limit on the mean length of a list's texts if it has the maximum number of entries; shorter lists may have longer
texts.
"""


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Options of a stream. include_usage: a last chunk with the usage. continuous_usage_stats: usage in every chunk.

    include_obfuscation is accepted and changes nothing: see `NEUTRAL_HERE`.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class GenerationRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The common fields. Fields under OpenAI's names, then vLLM's, then this server's (`explain`, `receipt`, `timings`,
    `energy`). None always means: not given.

    The last two groups hold the fields of `NEUTRAL` together with `user`, and those of `NOT_SERVED`.
    """

    model: str | None = None
    n: Int32 | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[int, float] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    top_k: Int32 | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[Int32] | None = None
    ignore_eos: bool | None = None
    min_tokens: Int32 | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    truncate_prompt_tokens: Int32 | None = None
    allowed_token_ids: list[Int32] | None = None
    bad_words: list[str] | None = None
    prompt_logprobs: Int32 | None = None
    add_special_tokens: bool | None = None
    priority: Int32 | None = None
    timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None
    cache_salt: str | None = None
    session: SessionName | None = None
    request_id: RequestId | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: StructuredOutputsParams | None = None
    guided_json: str | dict[str, Any] | bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_decoding_backend: str | None = None
    guided_whitespace_pattern: str | None = None
    explain: bool | None = None
    receipt: bool | None = None
    vllm_xargs: dict[str, Any] | None = None
    timings: bool | None = None
    energy: bool | None = None
    service_tier: ServiceTier | None = None
    kv_transfer_params: TransferParams | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None

    user: Any = None
    metadata: Any = None
    store: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None

    early_stopping: Any = None
    media_io_kwargs: Any = None
    data_parallel_rank: Any = None
    logprob_token_ids: Any = None
    repetition_detection: Any = None

    def check_shared(self, limits: ServerLimits) -> None:
        """Refuse combinations of shared fields that cannot be served, and lists that are too long."""
        for name, (neutral, reason) in NOT_SERVED.items():
            wanted = getattr(self, name)
            if wanted is not None and wanted not in neutral:
                raise RequestError(f"{name} is not served: {reason}; leave it out.", param=name)
        check_beams(self)
        for name in LISTS:
            check_list(name, getattr(self, name), limits.max_list_length)
        for name in NAMES:
            value = getattr(self, name)
            if isinstance(value, str) and len(value) > limits.max_list_length:
                raise RequestError(
                    f"{name} has {len(value)} characters; expected at most {limits.max_list_length}.", param=name
                )
        if self.stream_options is not None and not self.stream:
            raise RequestError(
                "stream_options needs stream to be true; set it, or leave them out.", param="stream_options"
            )
        if self.prompt_logprobs is not None and self.stream:
            raise RequestError("prompt_logprobs cannot be streamed; set stream to false.", param="prompt_logprobs")

    @property
    def form_field(self) -> str:
        """Return the name of the field that prescribes the answer's form; empty if none does."""
        names = (FORMAT, "structured_outputs", *GUIDED)
        return next((name for name in names if getattr(self, name) is not None), "")

    def answer_form(self) -> StructuredOutputsParams | None:
        """Return the prescribed form of the answer. Raises RequestError."""
        guided = {name: value for name in (*GUIDED, *OPTIONS) if (value := getattr(self, name)) is not None}
        return structured_outputs(self.response_format, self.structured_outputs, guided)

    def include_usage(self, *, forced: bool) -> bool:
        """Whether a stream ends with a chunk that holds the usage."""
        return forced or bool(self.stream_options and self.stream_options.include_usage)

    def continuous_usage(self, *, forced: bool) -> bool:
        """Whether every chunk of a stream holds the usage so far."""
        wanted = bool(self.stream_options and self.stream_options.continuous_usage_stats)
        return wanted and self.include_usage(forced=forced)

    def given_names(self) -> list[str]:
        """Return the names of sampling parameters that the request itself sets."""
        names = [name for name in PASSED_ON if getattr(self, name) is not None]
        if any(getattr(self, name, None) is not None for name in LENGTHS):
            names.append("max_tokens")
        return names

    def shared_params(self, defaults: Mapping[str, Any], **own: Any) -> SamplingParams:
        """Return sampling parameters: the checkpoint's `defaults`, then this request's fields, then `own`.

        Raises RequestError for a value out of range.
        """
        given = {name: value for name in PASSED_ON if (value := getattr(self, name)) is not None}
        kind = RequestOutputKind.DELTA if self.stream else RequestOutputKind.FINAL_ONLY
        form = self.answer_form()
        return SamplingParams(
            **{**defaults, **given, **own}, output_kind=kind, structured_outputs=form, extra_args=self.vllm_xargs
        )


def check_list(name: str, value: Sequence[Any] | Mapping[Any, Any] | None, most: int) -> None:
    """Raise RequestError if a list has more than `most` entries, or its texts too many characters."""
    entries = [value] if isinstance(value, str) else value or ()
    if len(entries) > most:
        raise RequestError(
            f"{name} has {len(entries)} entries; expected at most {most} (--max-list-length).", param=name
        )
    num_characters = sum(len(entry) for entry in entries if isinstance(entry, str))
    if num_characters > CHARACTERS_PER_ENTRY * most:
        raise RequestError(
            f"{name} has {num_characters} characters in all; expected at most {CHARACTERS_PER_ENTRY * most} "
            f"({CHARACTERS_PER_ENTRY} times --max-list-length).",
            param=name,
        )


def is_flex(tier: str | None, default: str) -> bool:
    """Whether a request is of the batch class. default: the class of requests that leave it to the server."""
    return (default if tier in (None, "auto") else tier) == "flex"
