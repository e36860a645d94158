"""The sampler's state of one running sequence beyond its columns: rarely used parameters, resolved once.

Owns: `SequenceSampling`. Never does: compute on logits, or change the tokens that it reads.
Called by: the persistent batch (builds one for each of its sequences), the columns and the stages of `core_runtime.sampling`.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from core.api.messages import EngineRequest
from core_runtime.sampling.changes.bad_words import BadWords
from core_runtime.sampling.changes.counts import TokenCounts
from core_runtime.sampling.distribution import Distribution
from core_runtime.sampling.noise import Float32, Ids

Tokens = NDArray[np.int32]
Bitmask = NDArray[np.int32]


class MaskError(Exception):
    """Error of a token mask; its message ends the sequence."""


class TokenMask(Protocol):
    """A source of allowed tokens, such as a grammar."""

    def __call__(self, output: Tokens, num_drafted: int) -> Bitmask | None:
        """Return the bitmask of the position after `output`; None: every token is allowed.

        output: int32 [n], the tokens generated so far, then drafts.
        num_drafted: number of drafts among them, which may be gone at the next call.

        Returns int32 [(V + 31) // 32]: bit i of word w stands for the token 32 * w + i and is set if it is allowed. It is
        """
        ...

    def allows(self, output: Tokens, num_drafted: int, token_id: int) -> bool:
        """Whether a token is known to be allowed after `output`; often far cheaper than the whole bitmask.

        False means unknown: the bitmask then decides. Raises MaskError.
        """
        ...

    @property
    def must_end(self) -> bool:
        """Whether the latest bitmask allows only tokens that end the answer. One of them then follows, whatever other
        options of the request say (`min_tokens`, `ignore_eos`, allowed ids, bad words).
        """
        ...


class SequenceSampling:
    """Parameters of a request that affect the logits of its own rows only. The persistent batch owns it.

    request: the sequence; its parameters are resolved.
    tokens: int32, at least as long as the sequence gets: its prompt, then its output. Another owner writes this memory.
    mask: token mask, or None. Set before the sequence enters the columns.
    processors: numbers of logits processors that run before the penalties. Set before as well.
    late_processors: numbers of those that run after the temperature.
    in_order: whether one of them must see every position once, so that the sequence can have no drafts.

    Options that are off are None or empty: allowed_ids, bias, bad_words, min_tokens_ids.
    trace: output tokens to replay, or None.
    listed: tokens whose log-probabilities are reported at every output index.
    penalized: whether any penalty is on.
    drawn: distributions of drafts by output index, if drafts are drawn apart from the tokens.
    """

    __slots__ = (
        "_counts",
        "allowed_ids",
        "bad_words",
        "bias",
        "drawn",
        "in_order",
        "late_processors",
        "listed",
        "mask",
        "min_tokens",
        "min_tokens_ids",
        "num_prompt_tokens",
        "params",
        "penalized",
        "processors",
        "request",
        "tokens",
        "trace",
    )

    def __init__(self, request: EngineRequest, tokens: Tokens) -> None:
        params = request.params
        self.request = request
        self.params = params
        self.tokens = tokens
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.allowed_ids: Ids | None = None
        if request.allowed_ids:
            self.allowed_ids = np.frombuffer(request.allowed_ids, np.int64)
        self.bias: tuple[Ids, Float32] | None = None
        if params.logit_bias:
            values = np.array(list(params.logit_bias.values()), dtype=np.float32)
            self.bias = _ids(list(params.logit_bias)), values
        self.trace = params.trace_decode_token_ids
        self.listed = params.logprob_token_ids or ()
        self.bad_words = BadWords(request.bad_words_ids)
        # Without stop tokens nothing ends the answer early, so no logits need to change.
        self.min_tokens = params.min_tokens if request.stop_token_ids else 0
        self.min_tokens_ids = _ids(request.stop_token_ids) if self.min_tokens else None
        counted = params.frequency_penalty != 0.0 or params.presence_penalty != 0.0
        self.penalized = counted or params.repetition_penalty != 1.0
        self.mask: TokenMask | None = None
        self.processors: tuple[int, ...] = ()
        self.late_processors: tuple[int, ...] = ()
        self.in_order = False
        self.drawn: dict[int, Distribution] = {}
        self._counts: TokenCounts | None = None

    @property
    def always_adjusts(self) -> bool:
        """Whether logits are changed at every position, not just before `min_tokens`. Masks change no logits."""
        listed = self.allowed_ids is not None or self.bias is not None or bool(self.bad_words)
        processed = bool(self.processors or self.late_processors)
        return listed or self.penalized or processed or self.trace is not None

    def output(self, stop: int) -> Tokens:
        """Return the first `stop` output tokens, int32 [stop]."""
        first = self.num_prompt_tokens
        return self.tokens[first : first + stop]

    def counts(self, index: int, num_drafted: int) -> tuple[Ids, Float32]:
        """Return the distinct tokens of prompt and output, and how often each is in the output, before output index `index`.

        num_drafted: number of drafts at the end of the output, which may be gone at the next call.
        Returns (int64 [n], float32 [n]), valid until the next call.
        """
        output = self.output(index)
        sure = index - num_drafted
        # Counts cannot be undone: after a step that is repeated with fewer tokens, they start again.
        if self._counts is None or self._counts.num_output > sure:
            self._counts = TokenCounts(self.request.prompt_token_ids)
        counts = self._counts
        if counts.num_output < sure:
            counts.add(output[counts.num_output : sure].tolist())
        # Drafts are counted in a copy, because they may be rejected.
        return counts.arrays(output[sure:].tolist())


def _ids(token_ids: list[int]) -> Ids:
    return np.array(token_ids, dtype=np.int64)
