"""What a request does to its logits before the temperature: masks, bias, penalties.

Owns: allowed ids, bad words, minimum tokens, logit bias and the three penalties, in that order. Never does: filter
(`core.sampling.filters`) or choose. Called by: `core.sampling.sampler`.

A pure function of (logits, prompt, output, drafts): position j of a draft sees drafts[:j] as output.
Ids beyond the vocabulary are ignored here; the front end refuses them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from core.sampling.noise import Float32, Ids
from core.sampling.state import SequenceSampling

MASKED = np.float32(-np.inf)


def adjust(logits: Float32, state: SequenceSampling, drafts: Sequence[int]) -> Float32:
    """The adjusted copy of one row of logits, float32 [V]; masked entries are -inf."""
    size = len(logits)
    if state.allowed_ids is None:
        logits = logits.copy()
    else:
        allowed = _inside(state.allowed_ids, size)
        masked = np.full_like(logits, MASKED)
        masked[allowed] = logits[allowed]
        logits = masked
    if state.bad_words:
        logits[_inside(state.bad_words.ends(state.output_token_ids, drafts), size)] = MASKED
    if state.min_tokens_ids is not None and state.index(drafts) < state.min_tokens:
        logits[_inside(state.min_tokens_ids, size)] = MASKED
    if state.bias is not None:
        ids, values = state.bias
        inside = ids < size
        logits[ids[inside]] += values[inside]
    if state.penalized:
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # extreme penalties: the sampler looks
            _penalize(logits, state, drafts)
    return logits


def _inside(ids: Ids, size: int) -> Ids:
    return ids[ids < size]


def _penalize(logits: Float32, state: SequenceSampling, drafts: Sequence[int]) -> None:
    params = state.params
    ids, counts = state.counts(drafts).arrays()
    inside = ids < len(logits)
    ids, counts = ids[inside], counts[inside]
    values = logits[ids]
    if params.repetition_penalty != 1.0:
        factor = np.float32(params.repetition_penalty)
        values = np.where(values > 0, values / factor, values * factor)
    values -= np.float32(params.frequency_penalty) * counts
    values -= np.float32(params.presence_penalty) * (counts > 0)
    logits[ids] = values
