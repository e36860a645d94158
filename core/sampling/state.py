"""What the sampler knows of one running sequence: resolved once, so that a step costs little.

Owns: `SequenceSampling`. Never does: compute on logits, or change the lists that it shares with the worker.
Called by: the worker (builds one for each sequence of its batch), `core.sampling.sampler`, `core.sampling.adjust`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from core.api.messages import EngineRequest
from core.sampling.bad_words import BadWords
from core.sampling.counts import TokenCounts
from core.sampling.noise import Float32, Ids, NoiseKey


class SequenceSampling:
    """Sampling state of one sequence.

    request:          the sequence; its parameters are resolved.
    output_token_ids: tokens generated so far. The same list object as the worker's: it grows outside.

    Attributes that are off are None or empty: allowed_ids, bias, bad_words, min_tokens_ids, counts.
    greedy: the most likely token wins. penalized: any penalty is on. filtered: top-k, top-p or min-p is on.
    logprobs: how many to report (-1: the whole vocabulary), or None.
    """

    __slots__ = (
        "_adjusted",
        "_counted",
        "_counts",
        "allowed_ids",
        "bad_words",
        "bias",
        "choice",
        "filtered",
        "greedy",
        "logprobs",
        "min_tokens",
        "min_tokens_ids",
        "output_token_ids",
        "params",
        "penalized",
        "prompt_token_ids",
        "seed",
    )

    def __init__(self, request: EngineRequest, output_token_ids: list[int]) -> None:
        params = request.params
        self.params = params
        self.seed = request.seed
        self.choice = request.choice
        self.prompt_token_ids = request.prompt_token_ids
        self.output_token_ids = output_token_ids
        self.greedy = params.greedy
        self.filtered = params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0
        self.logprobs = params.logprobs
        self.allowed_ids: Ids | None = np.frombuffer(request.allowed_ids, np.int64) if request.allowed_ids else None
        self.bias: tuple[Ids, Float32] | None = None
        if params.logit_bias:
            values = np.array(list(params.logit_bias.values()), dtype=np.float32)
            self.bias = _ids(list(params.logit_bias)), values
        self.bad_words = BadWords(request.bad_words_ids)
        self.min_tokens = params.min_tokens if request.stop_token_ids else 0
        self.min_tokens_ids = _ids(request.stop_token_ids) if self.min_tokens else None
        self.penalized = (
            params.repetition_penalty != 1.0 or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0
        )
        self._adjusted = self.penalized or self.allowed_ids is not None or self.bias is not None or bool(self.bad_words)
        self._counts: TokenCounts | None = None
        self._counted = 0

    def index(self, drafts: Sequence[int]) -> int:
        """The output index of the position after `drafts`, counted from the original prompt."""
        return len(self.output_token_ids) + len(drafts)

    def noise_key(self, drafts: Sequence[int]) -> NoiseKey:
        """The noise of the position after `drafts`."""
        return NoiseKey(self.seed, self.index(drafts), self.choice)

    def adjusts(self, drafts: Sequence[int]) -> bool:
        """Whether masks, bias or penalties change the logits of the position after `drafts`."""
        return self._adjusted or self.index(drafts) < self.min_tokens

    @property
    def plain(self) -> bool:
        """Whether a token is all that is wanted, now and later, and only temperature and filters decide on it."""
        return not self._adjusted and self.logprobs is None and len(self.output_token_ids) >= self.min_tokens

    def counts(self, drafts: Sequence[int]) -> TokenCounts:
        """Token counts of prompt, output and `drafts`; the drafts count as output."""
        output = self.output_token_ids
        if self._counts is None or self._counted > len(output):
            self._counts, self._counted = TokenCounts(self.prompt_token_ids), 0
        if self._counted < len(output):
            self._counts.add(output[self._counted :])
            self._counted = len(output)
        if not drafts:
            return self._counts
        with_drafts = self._counts.copy()
        with_drafts.add(drafts)
        return with_drafts


def _ids(token_ids: list[int]) -> Ids:
    return np.array(token_ids, dtype=np.int64)
