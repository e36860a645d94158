"""Sampling parameters of a request, under vLLM's names.

Owns: `SamplingParams`, its defaults and its validation. Never does: sample, tokenize, know a model.
Called by: users (`from core import SamplingParams`), the server (from request bodies), the engine (already resolved).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import Any, ClassVar

import msgspec

from core.api.errors import RequestError
from core.api.keyword_hints import HintedMeta
from core.api.structured_outputs import StructuredOutputsParams

MAX_SEED = 2**64 - 1
ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        "guided_decoding": "Write structured_outputs=StructuredOutputsParams(...).",
        "use_beam_search": "Call LLM.beam_search(prompts, BeamSearchParams(...)).",
        "length_penalty": "It is one of BeamSearchParams.",
        "early_stopping": "Call LLM.beam_search(prompts, BeamSearchParams(...)).",
        "best_of": "Only the number of answers can be asked for: n.",
        "logits_processors": "Give them to LLM(logits_processors=[...]), and their arguments to extra_args.",
        "flat_logprobs": "Log-probabilities are dictionaries by token id; leave it out.",
        "prompt_logprob_token_ids": "Ask for prompt_logprobs=-1, which max_logprobs=-1 allows, and take those of your tokens.",
        "prompt_logprob_start": "Those of the whole prompt are given; leave it out.",
        "skip_reading_prefix_cache": 'Give the prompt a salt of its own: {"prompt": ..., "cache_salt": ...}.',
        "repetition_detection": "Nothing ends an answer that repeats itself; penalties make it unlikely.",
        "thinking_token_budget": "Only requests to a server have one.",
        "stream_interval": "It is an argument of the engine.",
        "skip_clone": "Parameters are not copied; leave it out.",
        "routed_experts_prompt_start": "Outputs carry those of all tokens, with enable_return_routed_experts=True.",
    }
)
"""Names that vLLM or its older versions have, with what to write instead."""

SMALLEST_PENALTY = 1e-6
"""Smallest penalty: dividing logits by less would leave the range of float32."""


class RequestOutputKind(IntEnum):
    """The form in which intermediate outputs are returned: all text so far, the new text only, or none."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingParams(msgspec.Struct, metaclass=HintedMeta, omit_defaults=True, dict=True, forbid_unknown_fields=True):
    """Sampling parameters of one request.

    n:                  number of completions, each with its own choice index in the keyed noise.
    presence_penalty:   subtracted once from the logit of each token already generated, in [-2, 2].
    frequency_penalty:  subtracted per occurrence of each token already generated, in [-2, 2].
    repetition_penalty: divides (positive) or multiplies (negative) logits of tokens in prompt or output, in
                        [1e-6, 1e6].
    temperature:        0 is greedy; otherwise logits are divided by it.
    top_p, top_k, min_p: filters; 1.0, 0 (or -1) and 0.0 switch them off.
    seed:               64-bit key of the noise; None draws one a request.
    stop:               strings that end a completion; the text before them is kept.
    stop_token_ids:     tokens that end a completion.
    ignore_eos:         continue after the end-of-sequence token.
    max_tokens:         maximum number of output tokens; None is as many as the context allows.
    min_tokens:         no end-of-sequence or stop token is sampled before this many output tokens.
    logprobs:           number of most likely tokens to report for each output token (0: the chosen one only;
                        -1: the whole vocabulary; None: nothing).
    prompt_logprobs:    the same for each prompt token.
    logprob_token_ids:  tokens that are reported for each output token in addition; they need `logprobs`.
    detokenize, skip_special_tokens, spaces_between_special_tokens, include_stop_str_in_output: text output.
    output_kind:        cumulative, delta or final outputs.
    logit_bias:         {token id: added to its logit}, in [-100, 100].
    allowed_token_ids:  the only tokens that may be sampled.
    bad_words:          words whose token sequences may not be completed.
    truncate_prompt_tokens: keep only this number of prompt tokens, the last ones (-1: as many as fit).
    extra_args:         arbitrary settings for plugins.
    structured_outputs: constraint on the answer. Where the constraint allows only the end, the answer ends, whatever
                        `min_tokens`, `ignore_eos`, `bad_words` and `allowed_token_ids` say; elsewhere they apply.
    trace_decode_token_ids: the complete output, which is replayed token by token instead of sampling, whatever the other
                        fields say; raw log-probabilities are the model's own. `max_tokens` and end tokens are ignored.
    """

    elsewhere: ClassVar[Mapping[str, str]] = ELSEWHERE

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    truncate_prompt_tokens: int | None = None
    extra_args: dict[str, Any] | None = None
    structured_outputs: StructuredOutputsParams | None = None
    trace_decode_token_ids: list[int] | None = None

    def __post_init__(self) -> None:
        self.verify()

    @classmethod
    def from_optional(cls, **fields: Any) -> SamplingParams:
        """Make parameters from the fields that are not None. Raises TypeError for an unknown field, and RequestError."""
        return cls(**{name: value for name, value in fields.items() if value is not None})

    @property
    def stop_strings(self) -> list[str]:
        """The stop strings as a list, empty without any."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always chosen."""
        return self.temperature == 0.0

    def verify(self) -> None:
        """Check every field on its own and raise `RequestError` for the first that is out of range."""
        _integer("n", self.n, low=1)
        for name in ("presence_penalty", "frequency_penalty"):
            _number(name, getattr(self, name), low=-2.0, high=2.0)
        _number("repetition_penalty", self.repetition_penalty, low=SMALLEST_PENALTY, high=1 / SMALLEST_PENALTY)
        _number("temperature", self.temperature, low=0.0)
        _number("top_p", self.top_p, low=0.0, high=1.0, low_open=True)
        _integer("top_k", self.top_k, low=-1)
        _number("min_p", self.min_p, low=0.0, high=1.0)
        if self.seed is not None:
            _integer("seed", self.seed, low=-(2**63), high=MAX_SEED)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, low=1)
        _integer("min_tokens", self.min_tokens, low=0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens is {self.min_tokens}, more than max_tokens ({self.max_tokens}); lower one of them.",
                param="min_tokens",
            )
        for name in ("logprobs", "prompt_logprobs", "truncate_prompt_tokens"):
            if getattr(self, name) is not None:
                _integer(name, getattr(self, name), low=-1)
        self._verify_stop_strings()
        self._verify_tokens()
        self._verify_bad_words()
        wanted = self.structured_outputs
        if wanted is not None and not isinstance(wanted, StructuredOutputsParams):
            raise RequestError(
                f"structured_outputs is a {type(wanted).__name__}; expected StructuredOutputsParams.",
                param="structured_outputs",
            )
        self._verify_trace()

    def _verify_trace(self) -> None:
        """Check the tokens to replay, and refuse parameters that a replay cannot honour: it is one answer of fixed length."""
        trace = self.trace_decode_token_ids
        if trace is None:
            return
        param = "trace_decode_token_ids"
        if not isinstance(trace, list) or not trace:
            raise RequestError(f"{param} is {trace!r}; expected a list of at least one token id.", param=param)
        _token_ids(param, trace)
        for name, is_given in (
            ("n", self.n > 1),
            ("stop", bool(self.stop_strings)),
            ("structured_outputs", self.structured_outputs is not None),
        ):
            if is_given:
                raise RequestError(
                    f"{name} does not go with {param}, which is the whole answer; leave it out.", param=name
                )

    def _verify_stop_strings(self) -> None:
        if self.stop is not None and not isinstance(self.stop, str):
            _texts("stop", self.stop)
        for text in self.stop_strings:
            if not text:
                raise RequestError(
                    "stop holds an empty string, which would match everywhere; leave it out.", param="stop"
                )
        if self.stop_strings and not self.detokenize:
            raise RequestError("stop strings need text: set detokenize to true, or use stop_token_ids.", param="stop")

    def _verify_tokens(self) -> None:
        if self.logit_bias is not None and not isinstance(self.logit_bias, Mapping):
            raise RequestError(
                f"logit_bias is {self.logit_bias!r}; expected a mapping of token ids to numbers.", param="logit_bias"
            )
        for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
            _token_ids(name, getattr(self, name) or [])
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise RequestError(
                "allowed_token_ids is empty: nothing could be sampled; leave it out.", param="allowed_token_ids"
            )
        for token, bias in (self.logit_bias or {}).items():
            _integer("logit_bias", token, low=0)
            _number(f"logit_bias[{token}]", bias, low=-100.0, high=100.0)

    def _verify_bad_words(self) -> None:
        _texts("bad_words", self.bad_words or [])
        for word in self.bad_words or []:
            if not word.strip():
                raise RequestError("bad_words holds an empty word; leave it out.", param="bad_words")

    def clone(self) -> SamplingParams:
        """Return a deep copy, which shares no list or mapping with the original."""
        return msgspec.convert(msgspec.to_builtins(self), SamplingParams)


def _number(name: str, value: float, *, low: float = -math.inf, high: float = math.inf, low_open: bool = False) -> None:
    kind = isinstance(value, int | float) and not isinstance(value, bool)
    inside = kind and math.isfinite(value) and (value > low if low_open else value >= low) and value <= high
    if not inside:
        left = "(" if low_open or low == -math.inf else "["
        right = ")" if high == math.inf else "]"
        raise RequestError(
            f"{name} is {value!r}; expected a finite number in {left}{low:g}, {high:g}{right}.", param=name
        )


def _token_ids(name: str, values: Sequence[int]) -> None:
    """Check each token id as `_integer` does, with built-in functions: there may be as many ids as in a vocabulary."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise RequestError(f"{name} is {values!r}; expected a list of token ids.", param=name)
    if set(map(type, values)) <= {int} and min(values, default=0) >= 0:
        return
    for token in values:
        _integer(name, token, low=0)


def _texts(name: str, values: Sequence[str]) -> None:
    if isinstance(values, str) or not isinstance(values, Sequence) or not all(isinstance(text, str) for text in values):
        raise RequestError(f"{name} is {values!r}; expected a list of texts.", param=name)


def _integer(name: str, value: int, *, low: int, high: int | None = None) -> None:
    kind = isinstance(value, int) and not isinstance(value, bool)
    if not kind or value < low or (high is not None and value > high):
        limit = f"of at least {low}" if high is None else f"between {low} and {high}"
        raise RequestError(f"{name} is {value!r}; expected an integer {limit}.", param=name)
