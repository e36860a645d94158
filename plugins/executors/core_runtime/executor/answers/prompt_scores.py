"""Prompt logprobs, for the requests that want them.

Owns: which positions of a step are scored, and against which tokens. Never does: sample.
Called by: the model runner, once a step while such a request runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from core.api.logprobs_mode import shows_logits
from core.api.messages import TokenLogprobs
from core.api.step_plan import StepResult
from core_runtime.executor.steps.batch import PersistentBatch, StepInput
from core_runtime.sampling import Sampler, prompt_logprobs

Logits = Callable[[Sequence[int]], Tensor]
"""Function from rows of the step to logits float32 [R, V], valid until the next call."""


def scores_some(step: StepInput, batch: PersistentBatch) -> bool:
    """Whether a step computes prompt tokens that are scored."""
    for slot, begin in zip(step.slots.tolist(), step.num_computed.tolist(), strict=True):
        if slot in batch.scored and begin < len(batch[slot].prompt_token_ids) - 1:
            return True
    return False


def score_prompts(
    step: StepInput, batch: PersistentBatch, result: StepResult, logits: Logits, max_rows: int, sampler: Sampler
) -> None:
    """Compute logprobs of the prompt tokens that follow the positions computed in this step.

    max_rows: maximum rows of logits at once.
    sampler: supplies the logprobs kernel and the mode.
    """
    as_logits = shows_logits(sampler.mode)
    for index, slot in enumerate(step.slots.tolist()):
        request = batch[slot]
        number = request.params.prompt_logprobs
        prompt = request.prompt_token_ids
        begin = int(step.num_computed[index])
        # The last prompt token predicts the first output token, which the sampler reports.
        end = min(begin + int(step.query_lens[index]), len(prompt) - 1)
        if number is None or begin >= end:
            continue
        offset = int(step.cu_seqlens[index]) - begin
        entries: list[TokenLogprobs] = []
        for start in range(begin, end, max_rows):
            stop = min(start + max_rows, end)
            rows = logits(range(offset + start, offset + stop))
            token_ids = prompt[start + 1 : stop + 1]
            kernel = sampler.logprobs_of(rows)
            entries += prompt_logprobs(rows, token_ids, number, sampler.vocab_size, kernel, as_logits=as_logits)
        result.prompt_logprobs[slot] = entries
