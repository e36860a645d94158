"""What the sampler knows of one running sequence beyond its columns: the rare things, resolved once.

Owns: `SequenceSampling`. Never does: compute on logits, or change the tokens that it reads.
Called by: the persistent batch (builds one for each of its sequences), the columns and the stages of `core_runtime.sampling`.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from core.api.messages import EngineRequest
from core_runtime.sampling.bad_words import BadWords
from core_runtime.sampling.counts import TokenCounts
from core_runtime.sampling.distribution import Distribution
from core_runtime.sampling.noise import Float32, Ids

Tokens = NDArray[np.int32]
Bitmask = NDArray[np.int32]


class MaskError(Exception):
    """A token mask cannot tell which tokens may come: its sequence ends with this sentence."""


class TokenMask(Protocol):
    """Says which tokens may come next, such as a grammar does."""

    def __call__(self, output: Tokens, num_drafted: int) -> Bitmask | None:
        """The bitmask of the position after `output`; None: every token may come.

        output: int32 [n], the tokens generated so far, then those that are only drafted.
        num_drafted: how many of them are drafts, which may be gone at the next call.
        Returns int32 [(V + 31) // 32]: bit i of word w stands for the token 32 * w + i and is set where it may come. It is
        valid until the next call. Raises MaskError.
        """
        ...

    def allows(self, output: Tokens, num_drafted: int, token_id: int) -> bool:
        """Whether a token may come behind `output`, which is often far cheaper to say than every token that may.

        False says nothing: then the bitmask tells. Raises MaskError.
        """
        ...

    @property
    def must_end(self) -> bool:
        """Whether the latest bitmask left nothing but tokens that end the answer. Then one of them comes, whatever else the
        request asks for (`min_tokens`, `ignore_eos`, allowed ids, bad words)."""
        ...


class SequenceSampling:
    """What a request asks for that touches the logits of its own rows only.

    request: the sequence; its parameters are resolved.
    tokens: int32, at least as long as the sequence gets: its prompt, then its output. Memory that somebody else writes.
    mask: which tokens may come next, or None. Set before the sequence enters the columns.
    processors: of plugins that change its logits before the penalties, by number. Set before as well.
    late_processors: those that do behind the temperature.
    in_order: whether one of them must see every position once, so that the sequence has no drafts.

    Options that are off are None or empty: allowed_ids, bias, bad_words, min_tokens_ids.
    trace: the output tokens that are replayed, or None.
    penalized: any penalty is on.
    drawn: by output index, what its draft was drawn from, where drafts are drawn apart from the tokens.
    """

    __slots__ = (
        "_counts",
        "allowed_ids",
        "bad_words",
        "bias",
        "drawn",
        "in_order",
        "late_processors",
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
        self.bad_words = BadWords(request.bad_words_ids)
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
        """Whether logits are changed at every position; before `min_tokens`, they are in any case. Masks change none."""
        listed = self.allowed_ids is not None or self.bias is not None or bool(self.bad_words)
        processed = bool(self.processors or self.late_processors)
        return listed or self.penalized or processed or self.trace is not None

    def output(self, stop: int) -> Tokens:
        """The first `stop` output tokens, int32 [stop]."""
        first = self.num_prompt_tokens
        return self.tokens[first : first + stop]

    def counts(self, index: int, num_drafted: int) -> tuple[Ids, Float32]:
        """Distinct tokens of prompt and output and how often each is in the output, before output index `index`.

        num_drafted: how many of the last output tokens are drafts, which may be gone at the next call.
        Returns (int64 [n], float32 [n]), valid until the next call.
        """
        output = self.output(index)
        sure = index - num_drafted
        if self._counts is None or self._counts.num_output > sure:
            self._counts = TokenCounts(self.request.prompt_token_ids)
        counts = self._counts
        if counts.num_output < sure:
            counts.add(output[counts.num_output : sure].tolist())
        return counts.arrays(output[sure:].tolist())


def _ids(token_ids: list[int]) -> Ids:
    return np.array(token_ids, dtype=np.int64)
