"""The kinds of numbers that are reported for tokens when a request asks for log-probabilities.

Owns: the modes, under vLLM's names. Never does: compute. Called by: configuration, `core_runtime.sampling.reports`, `LLM`.

Raw modes report the logits as the model computed them. Processed modes report them as sampled from: after biases, penalties,
masks, temperature and filters.
"""

from __future__ import annotations

from typing import Literal

LogprobsMode = Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"]


def shows_processed(mode: LogprobsMode) -> bool:
    """Whether a mode reports processed values, those that the sampler drew from."""
    return mode in ("processed_logprobs", "processed_logits")


def shows_logits(mode: LogprobsMode) -> bool:
    """Whether a mode reports logits instead of log-probabilities."""
    return mode in ("raw_logits", "processed_logits")
