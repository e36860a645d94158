"""Beam search over an engine that continues sequences by one token.

Owns: the parameters, the beams of one prompt and which of them survive a step, by the rules of transformers. Never
does: run the engine, or tokenize. Called by: `LLM.beam_search`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from core.api.errors import RequestError
from core.api.keyword_hints import HintedMeta
from core_frontend.api.outputs import PositionLogprobs

MAX_WIDTH = 128


class BeamSearchParams(msgspec.Struct, metaclass=HintedMeta, kw_only=True, forbid_unknown_fields=True):
    """Parameters of a beam search.

    beam_width: number of live beams, and of returned ones.
    max_tokens: maximum number of tokens after the prompt.
    ignore_eos: continue after the end-of-sequence token.
    temperature: no effect: beams are compared by the model's own probabilities.
    length_penalty: a beam's score is its log probability, divided by the number of its tokens after the prompt to this
        power.
    include_stop_str_in_output: whether a beam's tokens include the end-of-sequence token.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        for name, most in (("beam_width", MAX_WIDTH), ("max_tokens", None)):
            value = getattr(self, name)
            is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            if not is_count or (most is not None and value > most):
                limit = "of at least 1" if most is None else f"from 1 to {most}"
                raise RequestError(f"{name} is {value!r}; expected an integer {limit}.", param=name)
        for name in ("temperature", "length_penalty"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise RequestError(f"{name} is {value!r}; expected a finite number.", param=name)


@dataclass(slots=True)
class BeamSearchSequence:
    """One beam of a search.

    tokens: of prompt and output.
    logprobs: for each output token the most likely ones.
    cum_logprob: of all output tokens.
    text: of all tokens, once the search is over.
    finish_reason: `stop` or `length`, once the beam has ended.
    stop_reason: the end-of-sequence token that ended it, or None.
    """

    tokens: list[int]
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """The beams of one prompt, best first."""

    sequences: list[BeamSearchSequence]


class Candidate(NamedTuple):
    """A beam with one more token.

    cum_logprob: with that token. logprobs: at its position.
    """

    cum_logprob: float
    beam: BeamSearchSequence
    token: int
    logprobs: PositionLogprobs


class BeamSearch:
    """The search of one prompt: continue all of `running` by a token, `advance`, until it `is_over`.

    num_tokens: maximum number of tokens after the prompt.
    eos: tokens that end a beam.
    cache_salt: of the prompt.
    running: the unfinished beams, best first.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        params: BeamSearchParams,
        num_tokens: int,
        eos: Collection[int],
        cache_salt: str | None = None,
    ) -> None:
        self.params = params
        self.num_tokens = num_tokens
        self.cache_salt = cache_salt
        self.eos = frozenset() if params.ignore_eos else frozenset(eos)
        self.running = [BeamSearchSequence(list(prompt))]
        self.is_over = False
        self._length = 0
        self._ended: list[tuple[float, BeamSearchSequence]] = []

    @property
    def num_candidates(self) -> int:
        """Return how many of the likeliest continuations of each beam count: enough that sufficiently many do not end."""
        factor = max(2, 1 + len(self.eos))
        return factor * self.params.beam_width

    def advance(self, found: Sequence[PositionLogprobs]) -> None:
        """Advance by one token. found: for each running beam, at least its `num_candidates` likeliest tokens."""
        width = self.params.beam_width
        candidates = self._best(found)
        self._length += 1
        at_limit = self._length >= self.num_tokens
        running: list[BeamSearchSequence] = []
        for rank, candidate in enumerate(candidates):
            ends = at_limit or candidate.token in self.eos
            if not ends:
                running.append(_longer(candidate))
            elif rank < width:
                score = self._score(candidate.cum_logprob)
                self._ended.append((score, self._last(candidate)))
        self.running = running[:width]
        self._ended.sort(key=lambda entry: -entry[0])
        del self._ended[width:]
        self.is_over = at_limit or not running or self._cannot_improve()

    def output(self) -> BeamSearchOutput:
        """Return the beams, once the search is over."""
        return BeamSearchOutput([beam for _, beam in self._ended])

    def _best(self, found: Sequence[PositionLogprobs]) -> list[Candidate]:
        """Return the likeliest continuations of all beams together."""
        candidates: list[Candidate] = []
        for beam, logprobs in zip(self.running, found, strict=True):
            for token, told in logprobs.items():
                total = beam.cum_logprob + told.logprob
                candidates.append(Candidate(total, beam, token, logprobs))
        candidates.sort(key=lambda candidate: -candidate.cum_logprob)
        return candidates[: self.num_candidates]

    def _score(self, cum_logprob: float) -> float:
        penalty: float = self._length**self.params.length_penalty
        return cum_logprob / penalty

    def _cannot_improve(self) -> bool:
        """Whether no running beam would, if it ended now, be better than the worst that has ended."""
        if len(self._ended) < self.params.beam_width:
            return False
        worst, _ = self._ended[-1]
        return self._score(self.running[0].cum_logprob) <= worst

    def _last(self, candidate: Candidate) -> BeamSearchSequence:
        """Return a beam that ends with this token."""
        beam = _longer(candidate)
        if candidate.token not in self.eos:
            beam.finish_reason = "length"
            return beam
        beam.finish_reason = "stop"
        beam.stop_reason = candidate.token
        if not self.params.include_stop_str_in_output:
            beam.tokens.pop()
        return beam


def _longer(candidate: Candidate) -> BeamSearchSequence:
    before = candidate.beam
    return BeamSearchSequence(
        tokens=[*before.tokens, candidate.token],
        logprobs=[*before.logprobs, candidate.logprobs],
        cum_logprob=candidate.cum_logprob,
    )
