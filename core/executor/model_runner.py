"""The model runner: one step from plan to result.

Owns: the persistent batch, the forward call, which rows get logits, sampling, verification and drafts.
Never does: schedule, allocate blocks, load weights. Called by: the executor, once a step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from core.api.messages import TokenLogprobs
from core.api.step_plan import Int32Array, Slot, StepPlan, StepResult
from core.executor.batch import PersistentBatch, StepInput
from core.executor.forward import ForwardPass
from core.executor.steady import SteadyDecode
from core.plugin.contracts import NeedsHidden, Proposer, ProposerInput
from core.sampling.sampler import Sampled, Sampler, SampleRow, prompt_logprobs
from core.sampling.verify import accept


class ModelRunner:
    """Runs steps on one model. proposer: None without speculation."""

    def __init__(
        self, forward: ForwardPass, batch: PersistentBatch, sampler: Sampler, proposer: Proposer | None
    ) -> None:
        self.forward, self.batch, self.sampler, self.proposer = forward, batch, sampler, proposer
        self.max_logits = forward.model.max_logits
        steady = proposer is None and forward.on_cpu and batch.buffers.shared
        self._steady = SteadyDecode(batch, forward, sampler) if steady else None
        self._needs_hidden = isinstance(proposer, NeedsHidden) and proposer.needs_hidden
        self._newest: dict[Slot, int] = {}  # the row of the step that gave each newest token

    def execute(self, plan: StepPlan) -> StepResult:
        """Update the batch, run the model on the scheduled tokens, sample, verify drafts, propose new ones."""
        if self._steady is not None:
            if self._steady.continues(plan):
                steady = self._steady.run(plan)
                return self._sample_again(plan) if steady is None else steady
            self._steady.end()
        self._apply(plan)
        result = StepResult()
        if plan.total_num_tokens:
            step = self.batch.step_input(plan)
            with torch.inference_mode():
                self.forward.run(step.views)
                if self.batch.scored:
                    self._prompt_logprobs(step, result)
                if step.drafts:
                    self._sample_drafts(step, result)
                else:
                    self._sample(step, result)
            self._propose(plan, result)
            if self._steady is not None:
                self._steady.begin(plan, result)
        return result

    def _apply(self, plan: StepPlan) -> None:
        left = self.batch.apply(plan)
        if self.proposer is not None:
            for key in left:
                self.proposer.on_finished(key)
            for new in plan.new:
                self.proposer.on_start(new.request.key, new.request.prompt_token_ids + new.output_token_ids)

    def _sample(self, step: StepInput, result: StepResult) -> None:
        """One token for every sequence whose last known token was computed; a failed row fails only its own sequence."""
        slots = step.slots[step.sampled_rows]
        rows = [self.batch[slot].row for slot in slots.tolist()]
        positions = (step.cu_seqlens[1:][step.sampled_rows] - 1).tolist()
        sampled = self._sample_rows(rows, positions)
        if self._needs_hidden:
            self._newest = dict(zip(slots.tolist(), positions, strict=True))
        self._keep(slots, sampled, result)

    def _sample_again(self, plan: StepPlan) -> StepResult:
        """A row of a steady step could not be sampled: the others get the same tokens again, and it gets a sentence."""
        result = StepResult()
        with torch.inference_mode():
            sampled = self._sample_rows([self.batch[slot].row for slot in plan.slots.tolist()], range(len(plan.slots)))
        self._keep(plan.slots, sampled, result)
        return result

    def _keep(self, slots: Int32Array, sampled: list[Sampled], result: StepResult) -> None:
        """One sampled row for each of these slots."""
        good = np.ones(len(sampled), bool)
        for index, item in enumerate(sampled):
            if item.error is not None:
                result.errors[int(slots[index])] = item.error
                good[index] = False
            elif item.logprobs is not None:
                result.logprobs[int(slots[index])] = [item.logprobs]
        token_ids = np.array([item.token_id for item in sampled], np.int64)
        if result.errors:
            slots, token_ids = slots[good], token_ids[good]
        self.batch.extend(slots, token_ids)
        result.slots, result.token_ids = slots, token_ids.astype(np.int32)

    def _sample_drafts(self, step: StepInput, result: StepResult) -> None:
        """The same with drafts to verify: one row for each draft, and one behind them."""
        rows: list[SampleRow] = []
        positions: list[int] = []
        owners: list[tuple[Slot, list[int]]] = []
        for index in step.sampled_rows.tolist():
            slot, stop = int(step.slots[index]), int(step.cu_seqlens[index + 1])
            drafts = step.drafts.get(slot, [])
            owners.append((slot, drafts))
            for count in range(len(drafts) + 1):
                rows.append(SampleRow(self.batch[slot].row.state, drafts[:count]))
                positions.append(stop - len(drafts) - 1 + count)
        sampled = self._sample_rows(rows, positions)
        first: dict[Slot, int] = {}
        offset = 0
        for slot, drafts in owners:
            mine = sampled[offset : offset + len(drafts) + 1]
            offset += len(mine)
            token_ids = self._settle(slot, drafts, mine, result)
            if token_ids:
                self._newest[slot] = positions[offset - len(mine) + len(token_ids) - 1]
                first[slot], *rest = token_ids
                if rest:
                    result.more_token_ids[slot] = rest
        result.slots = np.array(list(first), np.int32)
        result.token_ids = np.array(list(first.values()), np.int32)

    def _logits(self, rows: Sequence[int]) -> torch.Tensor:
        """Logits of some rows of the step, at most `max_logits`; valid until the next call."""
        self.batch.buffers.logit_rows.array[: len(rows)] = rows
        return self.forward.logits(len(rows))

    def _sample_rows(self, rows: list[SampleRow], positions: Sequence[int]) -> list[Sampled]:
        sampled: list[Sampled] = []
        limit = self.max_logits
        for start in range(0, len(rows), limit):
            logits = self._logits(positions[start : start + limit])
            sampled += self.sampler.sample(logits, rows[start : start + limit])
        return sampled

    def _settle(self, slot: Slot, drafts: list[int], mine: list[Sampled], result: StepResult) -> list[int]:
        """Keep the accepted drafts and one more token; none when a row failed."""
        accepted = accept(drafts, [row.token_id for row in mine])
        kept = mine[: accepted + 1]
        error = next((row.error for row in kept if row.error), None)
        if error is not None:
            result.errors[slot] = error
            return []
        token_ids = [row.token_id for row in kept]
        self.batch[slot].output_token_ids += token_ids
        self.batch.num_tokens[slot] += len(token_ids)
        self.batch.last_token[slot] = token_ids[-1]
        logprobs = [row.logprobs for row in kept if row.logprobs is not None]
        if logprobs:
            result.logprobs[slot] = logprobs
        return token_ids

    def _prompt_logprobs(self, step: StepInput, result: StepResult) -> None:
        """Score the prompt tokens that follow the positions computed in this step."""
        for index, slot in enumerate(step.slots.tolist()):
            request = self.batch[slot].request
            number = request.params.prompt_logprobs
            begin = int(step.num_computed[index])
            end = min(step.view.seq_lens_list[index], len(request.prompt_token_ids) - 1)
            if number is None or begin >= end:
                continue
            entries: list[TokenLogprobs] = []
            kernel = self.sampler.logprobs if self.forward.on_cpu else None
            for start in range(begin, end, self.max_logits):
                stop = min(start + self.max_logits, end)
                first = int(step.cu_seqlens[index]) + start - begin
                targets = request.prompt_token_ids[start + 1 : stop + 1]
                logits = self._logits(range(first, first + stop - start))
                entries += prompt_logprobs(logits, targets, number, kernel=kernel)
            result.prompt_logprobs[slot] = entries

    def _propose(self, plan: StepPlan, result: StepResult) -> None:
        if self.proposer is None or not len(result.slots):
            return
        token_ids = result.tokens()
        slots = list(token_ids)
        keys = [self.batch[slot].request.key for slot in slots]
        budget = [plan.draft_budget.get(slot, 0) for slot in slots]
        hidden = self.forward.residual([self._newest[slot] for slot in slots]) if self._needs_hidden else None
        proposals = self.proposer.propose(ProposerInput(keys, list(token_ids.values()), budget, hidden))
        for slot, drafts, limit in zip(slots, proposals, budget, strict=True):
            if drafts and limit > 0:
                result.drafts[slot] = drafts[:limit]
