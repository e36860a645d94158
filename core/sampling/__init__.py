"""Turns logits into tokens: keyed noise, masks, penalties, filters, log-probabilities, verification of drafts.

Owns: everything between the logits of a step and its token ids. Never does: run a model, schedule, decode text.
Called by: the persistent batch and the model runner.
"""

from core.sampling.columns import SamplingColumns
from core.sampling.logprobs import prompt_logprobs
from core.sampling.rows import SampleRows
from core.sampling.sampler import Sampler, sampling_kind
from core.sampling.state import SequenceSampling, TokenMask
from core.sampling.verify import accept

__all__ = [
    "SampleRows",
    "Sampler",
    "SamplingColumns",
    "SequenceSampling",
    "TokenMask",
    "accept",
    "prompt_logprobs",
    "sampling_kind",
]
