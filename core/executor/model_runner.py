"""The model runner: one step from plan to result.

Owns: the order of a step: batch, forward, logits in chunks, sampling, proposals; what is recorded of the sampling.
Never does: schedule, allocate blocks, load weights, read sampled rows (`core.executor.verify`).
Called by: the worker, once a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from core.api.step_plan import StepPlan, StepResult
from core.executor.batch import PersistentBatch, StepInput
from core.executor.checked_proposer import CheckedProposer
from core.executor.forward import ForwardPass
from core.executor.prompt_scores import score_prompts
from core.executor.verify import keep_tokens, verify_drafts
from core.plugin.contracts import ProposerInput, RequestFacts
from core.sampling import Sampler


class ModelRunner:
    """Runs steps on one model.

    proposer: None without speculation.
    most_forced: tokens of forced text that are drafted for a sequence with a grammar; 0 where nobody would verify them.
    """

    def __init__(
        self,
        forward: ForwardPass,
        batch: PersistentBatch,
        sampler: Sampler,
        proposer: CheckedProposer | None,
        most_forced: int = 0,
    ) -> None:
        self.forward = forward
        self.batch = batch
        self.sampler = sampler
        self.proposer = proposer
        self.most_forced = most_forced
        self.max_logits = forward.model.max_logits
        self._on_cpu = forward.on_cpu
        self._shares_memory = batch.buffers.shared
        self._proposer_off = ""

    def execute(self, plan: StepPlan) -> StepResult:
        """Update the batch, run the model on the scheduled tokens, sample, verify drafts, propose new ones."""
        self._apply(plan)
        result = StepResult()
        if not plan.total_num_tokens:
            return result
        step = self.batch.step_input(plan)
        logits = step.logits
        if logits is not None and self._shares_memory and self.forward.captured(len(step.slots)):
            self._replay(step, logits)
        else:
            with torch.inference_mode():
                self._run(step, result)
        keep = verify_drafts if step.drafts else keep_tokens
        positions = keep(step, self.batch, result)
        if self.proposer is not None:
            self._propose(self.proposer, plan, result, positions)
            if self.proposer.off:
                self._proposer_off = self.proposer.off
                self.proposer = None
        result.proposer_off = self._proposer_off
        if self.most_forced and self.batch.masks:
            self._propose_forced(plan, result)
        return result

    def _apply(self, plan: StepPlan) -> None:
        left = self.batch.apply(plan)
        if self.proposer is None:
            return
        for key in left:
            self.proposer.on_finished(key)
        for new in plan.new:
            request = new.request
            facts = RequestFacts(request.tenant, request.cache_salt)
            self.proposer.on_request(request.key, facts)
            self.proposer.on_start(request.key, request.prompt_token_ids + new.output_token_ids)

    def _run(self, step: StepInput, result: StepResult) -> None:
        """The forward pass and every row of logits."""
        self.forward.run(self.batch.views(step))
        if self.batch.scored and not step.continues:
            kernel = self.sampler.logprobs if self._on_cpu else None
            score_prompts(step, self.batch, result, self._logits, self.max_logits, kernel)
        num_rows = len(step.positions)
        for start in range(0, num_rows, self.max_logits):
            end = start + self.max_logits
            logits = self._logits(step.positions[start:end])
            self.sampler.sample(logits, self.batch.rows, start, self._run_sampling)
        if 0 < num_rows <= self.max_logits:
            step.logits = logits  # a step that continues this one replays into the same rows

    def _replay(self, step: StepInput, logits: torch.Tensor) -> None:
        """The same from recordings alone, which read what they need from the step's buffers."""
        self.forward.replay(len(step.slots))
        self.sampler.sample(logits, self.batch.rows, 0, self._run_sampling)

    def _logits(self, positions: Sequence[int] | NDArray[np.int64]) -> torch.Tensor:
        """Logits behind some tokens of the step, at most `max_logits`; valid until the next call."""
        count = len(positions)
        self.batch.buffers.logit_rows.array[:count] = positions
        return self.forward.logits(count)

    def _run_sampling(self, kind: str, count: int, call: Callable[[], None]) -> None:
        """Make the kernel's call of this kind on `count` rows, recorded or replayed where that can be."""
        self.forward.recorder.run(kind, count, 0, call)

    def _propose_forced(self, plan: StepPlan, result: StepResult) -> None:
        """Add the tokens of text that grammars force; they go before a proposer's, which are guesses."""
        masks = self.batch.masks
        for slot in result.slots.tolist():
            mask = masks.get(slot)
            if mask is None:
                continue
            limit = self.most_forced
            if self.proposer is not None:
                limit = min(limit, plan.draft_budget.get(slot, 0))
            drafts = mask.forced(self.batch.tokens.output(slot))
            if drafts and limit > 0:
                result.drafts[slot] = drafts[:limit]

    def _propose(
        self, proposer: CheckedProposer, plan: StepPlan, result: StepResult, positions: NDArray[np.int64]
    ) -> None:
        """Ask for drafts. positions: of the step's tokens behind which each sequence's newest token was sampled."""
        if not len(result.slots):
            return
        tokens = result.tokens()
        slots = list(tokens)
        token_ids = list(tokens.values())
        keys = [self.batch[slot].key for slot in slots]
        budget = [plan.draft_budget.get(slot, 0) for slot in slots]
        hidden: torch.Tensor | None = None
        if proposer.needs_hidden:
            hidden = self.forward.residual(positions.tolist())
        proposals = proposer.propose(ProposerInput(keys, token_ids, budget, hidden))
        for slot, drafts, limit in zip(slots, proposals, budget, strict=True):
            if drafts and limit > 0:
                result.drafts[slot] = drafts[:limit]
