"""Turns logits into tokens: keyed noise, masks, penalties, filters, log-probabilities, verification of drafts.

Owns: everything between the logits of a step and its token ids. Never does: run a model, schedule, decode text.
Called by: the executor's worker.
"""

from core.sampling.logprobs import prompt_logprobs
from core.sampling.sampler import Sampled, Sampler, SampleRow
from core.sampling.state import SequenceSampling
from core.sampling.verify import accept

__all__ = ["SampleRow", "Sampled", "Sampler", "SequenceSampling", "accept", "prompt_logprobs"]
