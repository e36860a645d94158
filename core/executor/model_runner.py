"""The model runner: one step from plan to result.

Owns: the persistent batch, the forward call, which rows get logits, sampling, verification and drafts.
Never does: schedule, allocate blocks, load weights. Called by: the executor, once a step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from core.api.messages import TokenLogprobs
from core.api.step_plan import SequenceKey, StepPlan, StepResult
from core.executor.batch import PersistentBatch, RunningSequence, StepInput
from core.executor.forward import ForwardPass
from core.plugin.contracts import Proposer, ProposerInput
from core.sampling.sampler import Sampled, Sampler, SampleRow, prompt_logprobs
from core.sampling.verify import accept


class ModelRunner:
    """Runs steps on one model. proposer: None without speculation."""

    def __init__(
        self, forward: ForwardPass, batch: PersistentBatch, sampler: Sampler, proposer: Proposer | None
    ) -> None:
        self.forward, self.batch, self.sampler, self.proposer = forward, batch, sampler, proposer
        self.max_logits = forward.model.max_logits

    def execute(self, plan: StepPlan) -> StepResult:
        """Update the batch, run the model on the scheduled tokens, sample, verify drafts, propose new ones."""
        self._apply(plan)
        result = StepResult()
        if plan.num_scheduled:
            step = self.batch.step_input(plan)
            with torch.inference_mode():
                self.forward.run(step.view)
                self._prompt_logprobs(step, result)
                self._sample(step, result)
            self._propose(plan, result)
        return result

    def _apply(self, plan: StepPlan) -> None:
        self.batch.apply(plan)
        if self.proposer is not None:
            for key in plan.removed:
                self.proposer.on_finished(key)
            for new in plan.new:
                self.proposer.on_start(new.request.key, new.request.prompt_token_ids + new.output_token_ids)

    def _sample(self, step: StepInput, result: StepResult) -> None:
        """Sample for every sequence whose last known token was computed, and advance all of them."""
        rows: list[SampleRow] = []
        positions: list[int] = []
        owners: list[tuple[SequenceKey, RunningSequence, list[int]]] = []
        for index, key in enumerate(step.keys):
            sequence = self.batch.sequences[key]
            drafts = step.drafts.get(key, [])
            end = step.view.seq_lens_list[index]
            if end < sequence.num_tokens + len(drafts):
                sequence.num_computed_tokens = end
                continue
            owners.append((key, sequence, drafts))
            stop = step.starts[index + 1]
            for count in range(len(drafts) + 1):
                rows.append(SampleRow(sequence.sampling, drafts[:count]))
                positions.append(stop - len(drafts) - 1 + count)
        sampled = self._sample_rows(rows, positions)
        offset = 0
        for key, sequence, drafts in owners:
            mine = sampled[offset : offset + len(drafts) + 1]
            offset += len(mine)
            self._settle(key, sequence, drafts, mine, result)

    def _logits(self, rows: Sequence[int]) -> torch.Tensor:
        """Logits of some rows of the step, at most `max_logits`; valid until the next call."""
        self.batch.buffers.logit_rows.array[: len(rows)] = rows
        return self.forward.logits(len(rows))

    def _sample_rows(self, rows: list[SampleRow], positions: list[int]) -> list[Sampled]:
        sampled: list[Sampled] = []
        limit = self.max_logits
        for start in range(0, len(rows), limit):
            logits = self._logits(positions[start : start + limit])
            sampled += self.sampler.sample(logits, rows[start : start + limit])
        return sampled

    def _settle(
        self, key: SequenceKey, sequence: RunningSequence, drafts: list[int], mine: list[Sampled], result: StepResult
    ) -> None:
        """Keep the accepted drafts and one more token; a failed row fails only its own sequence."""
        accepted = accept(drafts, [row.token_id for row in mine])
        kept = mine[: accepted + 1]
        error = next((row.error for row in kept if row.error), None)
        if error is not None:
            result.errors[key] = error
            return
        token_ids = [row.token_id for row in kept]
        sequence.num_computed_tokens = sequence.num_tokens + accepted
        sequence.output_token_ids += token_ids
        result.token_ids[key] = token_ids
        logprobs = [row.logprobs for row in kept if row.logprobs is not None]
        if logprobs:
            result.logprobs[key] = logprobs

    def _prompt_logprobs(self, step: StepInput, result: StepResult) -> None:
        """Score the prompt tokens that follow the positions computed in this step."""
        for index, key in enumerate(step.keys):
            sequence = self.batch.sequences[key]
            number = sequence.request.params.prompt_logprobs
            begin = sequence.num_computed_tokens
            end = min(step.view.seq_lens_list[index], sequence.num_prompt_tokens - 1)
            if number is None or begin >= end:
                continue
            entries: list[TokenLogprobs] = []
            for start in range(begin, end, self.max_logits):
                stop = min(start + self.max_logits, end)
                first = step.starts[index] + start - begin
                targets = sequence.request.prompt_token_ids[start + 1 : stop + 1]
                entries += prompt_logprobs(self._logits(range(first, first + stop - start)), targets, number)
            result.prompt_logprobs[key] = entries

    def _propose(self, plan: StepPlan, result: StepResult) -> None:
        if self.proposer is None or not result.token_ids:
            return
        keys = list(result.token_ids)
        budget = [plan.draft_budget.get(key, 0) for key in keys]
        proposals = self.proposer.propose(ProposerInput(keys, [result.token_ids[key] for key in keys], budget))
        for key, drafts, limit in zip(keys, proposals, budget, strict=True):
            if drafts and limit > 0:
                result.drafts[key] = drafts[:limit]
