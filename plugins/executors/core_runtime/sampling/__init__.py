"""Sampling: turns logits into tokens, with keyed noise, masks, penalties, filters, logprobs and verification of drafts.

Owns: everything between the logits of a step and its token ids. Never does: run a model, schedule, decode text.
Called by: the persistent batch and the model runner.
"""

from core_runtime.sampling.columns import SamplingColumns
from core_runtime.sampling.drafts.verify import accept
from core_runtime.sampling.logprobs import prompt_logprobs
from core_runtime.sampling.rows import SampleRows
from core_runtime.sampling.sampler import DRAWS, Sampler, sampling_kind
from core_runtime.sampling.state import SequenceSampling, TokenMask

__all__ = [
    "DRAWS",
    "SampleRows",
    "Sampler",
    "SamplingColumns",
    "SequenceSampling",
    "TokenMask",
    "accept",
    "prompt_logprobs",
    "sampling_kind",
]
