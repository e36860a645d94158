"""What is told of tokens whose log-probabilities are asked for.

Owns: the modes, under vLLM's names. Never does: compute. Called by: configuration, `core_runtime.sampling.reports`, `LLM`.

Raw: of the logits as the model computed them. Processed: as they competed, behind biases, penalties, masks, temperature and
filters.
"""

from __future__ import annotations

from typing import Literal

LogprobsMode = Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"]


def shows_processed(mode: LogprobsMode) -> bool:
    """Whether a mode tells of logits as they competed."""
    return mode in ("processed_logprobs", "processed_logits")


def shows_logits(mode: LogprobsMode) -> bool:
    """Whether a mode tells of logits themselves, and not of log-probabilities."""
    return mode in ("raw_logits", "processed_logits")
