"""The rules of Whisper's tokens, as a logits processor: which tokens of times may follow, and which are never sampled.

Owns: the rules of transformers' `WhisperTimeStampLogitsProcessor` and suppressed tokens. Never does: know a checkpoint; each
request brings its rules. Called by: the worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import torch
from torch import Tensor

from core.api.sampling_params import SamplingParams
from core_media.sound.rules import ARGUMENT, Rules
from core_runtime.contracts import BatchChanges, LogitsRow

NEVER: Final = float("-inf")


class TokenRules:
    """The processor. A request asks for it with `extra_args={"whisper": ...}`; others never come here."""

    is_argmax_invariant = False

    def validate_params(self, params: SamplingParams) -> None:
        """Check the rules. Raises ValueError."""
        given = (params.extra_args or {}).get(ARGUMENT)
        if given is not None:
            _read(given)

    def wants(self, params: SamplingParams) -> bool:
        """Whether the request has rules."""
        return (params.extra_args or {}).get(ARGUMENT) is not None

    def update(self, changes: BatchChanges) -> None:
        """Do nothing: a row's own tokens say everything."""

    def apply(self, logits: Tensor, rows: Sequence[LogitsRow]) -> Tensor:
        """Forbid tokens, row by row."""
        for scores, row in zip(logits, rows, strict=True):
            assert row.params.extra_args is not None, "rows of other requests are not given"
            _forbid(scores, row.output.tolist(), _read(row.params.extra_args[ARGUMENT]))
        return logits

    def example_params(self) -> SamplingParams:
        """Return parameters that suppress a token."""
        rules = Rules(end=5, no_times=7, times=True, suppressed=[0])
        return SamplingParams(extra_args={ARGUMENT: msgspec.to_builtins(rules)})


def _read(given: Mapping[str, Any]) -> Rules:
    try:
        return msgspec.convert(given, Rules)
    except msgspec.ValidationError as error:
        raise ValueError(f"{ARGUMENT}: {error}") from error


def _forbid(scores: Tensor, output: list[int], rules: Rules) -> None:
    """Forbid tokens of one row, in place. scores: [V]."""
    if rules.forced:
        chosen = rules.forced[min(len(output), len(rules.forced) - 1)]
        scores[:] = NEVER
        scores[chosen] = 0.0
        return
    scores[rules.suppressed] = NEVER
    if not output:
        scores[rules.suppressed_first] = NEVER
    if not rules.times:
        return
    first = rules.no_times + 1
    scores[rules.no_times] = NEVER
    _forbid_times(scores, output, rules.end, first)
    if not output:
        scores[:first] = NEVER
        if rules.latest_first is not None:
            scores[first + rules.latest_first + 1 :] = NEVER
    logprobs = torch.log_softmax(scores, -1)
    # Times are sampled where they are together more probable than any text.
    if torch.logsumexp(logprobs[first:], -1) > logprobs[:first].max():
        scores[:first] = NEVER


def _forbid_times(scores: Tensor, output: list[int], end: int, first: int) -> None:
    """Let times rise, and come in pairs but at the beginning and the end. first: token of the time 0."""
    follows_time = bool(output) and output[-1] >= first
    follows_pair = len(output) < 2 or output[-2] >= first
    if follows_time and follows_pair:
        scores[first:] = NEVER
    elif follows_time:
        scores[:end] = NEVER
    times = [token for token in output if token >= first]
    if times:
        least = times[-1] if follows_time and not follows_pair else times[-1] + 1
        scores[first:least] = NEVER
