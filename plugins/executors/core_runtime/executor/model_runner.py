"""The model runner: runs one step, from plan to result.

Owns: the order of a step: batch, forward, logits in chunks, sampling, proposals; which sampling calls are recorded.
Never does: schedule, allocate blocks, load weights, read sampled rows (`core_runtime.executor.steps.verify`).
Called by: the worker, once a step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from core.api.step_plan import StepPlan, StepResult
from core_runtime.executor.answers.answer_facts import FactKeeper
from core_runtime.executor.answers.pooled import Pooler
from core_runtime.executor.answers.prompt_scores import score_prompts, scores_some
from core_runtime.executor.drafts.heads import HeadsPass
from core_runtime.executor.drafts.passes import DraftPass
from core_runtime.executor.drafts.pending import Drafts
from core_runtime.executor.drafts.proposals import Proposals
from core_runtime.executor.forward import ForwardPass
from core_runtime.executor.steps.batch import PersistentBatch, StepInput
from core_runtime.executor.steps.device_tokens import DeviceTokens
from core_runtime.executor.steps.input_embeddings import InputEmbeddings, input_embeddings
from core_runtime.executor.steps.verify import keep_tokens, verify_drafts
from core_runtime.sampling import DRAWS, Sampler

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Prepared:
    """A step whose input lies in the buffers.

    plan: plan as received.
    settled: plan with its actual rows, after earlier steps accepted their drafts.
    step: which sequence each part of the arrays belongs to.
    drafts: drafts that the step verifies, by slot.
    """

    plan: StepPlan
    settled: StepPlan
    step: StepInput
    drafts: Drafts


class ModelRunner:
    """Runs steps on one model. The worker owns it.

    proposals: drafts of a plugin without a model of ours, or None.
    drafting: passes of a draft model or of draft heads, or None.
    most_forced: maximum tokens of forced text to draft for a sequence with a grammar; 0: no step could verify them.
    pooler: pooler of a model whose hidden states are the answer, or None.
    share: returns the drafts that all ranks use, from this rank's; None: there is one rank.
    facts: what outputs carry besides tokens; None: nothing.

    proposer_off: why drafting was switched off; empty while it works, or if there never was any.
    """

    def __init__(
        self,
        forward: ForwardPass,
        batch: PersistentBatch,
        sampler: Sampler,
        proposals: Proposals | None,
        most_forced: int = 0,
        drafting: DraftPass | HeadsPass | None = None,
        pooler: Pooler | None = None,
        share: Callable[[Drafts], Drafts] | None = None,
        facts: FactKeeper | None = None,
    ) -> None:
        self.forward = forward
        self.batch = batch
        self.sampler = sampler
        self.proposals = proposals
        self.drafting = drafting
        self.most_forced = most_forced
        self.pooler = pooler
        self._share = share
        self.facts = facts
        self.max_logits = forward.model.max_logits
        self._step_hooks = forward.model.kernels.step_hooks
        self._shares_memory = batch.buffers.shared
        self.proposer_off = ""

    def execute(self, plan: StepPlan) -> StepResult:
        """Update the batch, run the model on the scheduled tokens, sample, verify drafts, propose new ones."""
        prepared = self.prepare(plan)
        return StepResult() if prepared is None else self.compute(prepared)

    def prepare(self, plan: StepPlan) -> Prepared | None:
        """Update the batch and fill the step's buffers. Returns None if there is nothing to compute."""
        for begin_step in self._step_hooks:
            begin_step()
        self._apply(plan)
        if not plan.total_num_tokens:
            return None
        settled, drafts = self.batch.drafts.settle(plan)
        # All planned sequences may have ended in steps that the scheduler had not seen.
        if not settled.total_num_tokens:
            return None
        step = self.batch.step_input(settled, drafts)
        return Prepared(plan, settled, step, drafts)

    def compute(self, prepared: Prepared) -> StepResult:
        """Run a prepared step and wait for its result."""
        result = StepResult()
        step = prepared.step
        settled = prepared.settled
        self._compute(step, result)
        if self.facts is not None:
            self.facts.computed(step)  # before `keep`, which moves the step on
        keep = verify_drafts if step.drafts else keep_tokens
        positions = keep(step, self.batch, result)
        if self.facts is not None:
            self.facts.tell(step, result)
        # Before drafting: the draft's pass and the next step expect accepted tokens in consecutive slots.
        if step.trees is not None and step.trees.moves:
            self.forward.move(step.trees.moves)
        if prepared.plan.num_drafts:
            result.num_verified = {slot: len(token_ids) for slot, token_ids in prepared.drafts.items()}
            result.same_slots = result.same_slots and len(settled.slots) == len(prepared.plan.slots)
        self._draft(settled, result, positions)
        return result

    def follow(self, prepared: Prepared) -> None:
        """Run the model on a prepared step whose tokens another rank draws."""
        self._compute(prepared.step, StepResult())

    @property
    def guesses(self) -> bool:
        """Whether anything proposes drafts, which needs the tokens before them on the host."""
        return self.proposals is not None or self.drafting is not None

    def is_plain(self, prepared: Prepared) -> bool:
        """Whether the device can run the step alone, keep its tokens for the next step, and let the host read them later."""
        if self.guesses or prepared.plan.num_drafts or self.batch.pooled or self._given(prepared.step) is not None:
            return False
        if self.batch.encoded or self.facts is not None:
            return False
        if self.batch.scored and scores_some(prepared.step, self.batch):
            return False
        adapters = self.forward.adapters
        if adapters is not None and adapters.change_head(prepared.step.adapters):
            return False
        rows = self.batch.rows
        return rows.count <= self.max_logits and self.sampler.draws_alone(rows)

    def launch(self, step: StepInput, taken: DeviceTokens | None = None) -> torch.Tensor | None:
        """Launch a plain step on the device without waiting.

        Returns the words that the host wants to read, see `Sampler.draw`; None if nothing is sampled.

        taken: input tokens that only the device has; None: the host has written all of them.
        """
        count = len(step.positions)
        self.forward.adapted = step.adapters
        with torch.inference_mode():
            kind = DRAWS[self.batch.rows.filtered]
            if taken is not None and taken.in_order:
                self.forward.follow(lambda: self.batch.views(step), taken)
                # `logit_rows` still names the right rows: the step has the same sequences as the previous one.
                rows = self.forward.recorder.size(kind, count) or count
                return self._draw(kind, count, rows)
            views = self.batch.views(step)
            wanted = self._wanted(step, None)
            self.batch.buffers.logit_rows.array[:count] = step.positions if wanted is None else np.arange(count)
            rows = self.forward.choose(count, kind)
            self.forward.run(views, taken, wanted=wanted)
            return self._draw(kind, count, rows)

    def _draw(self, kind: str, count: int, rows: int) -> torch.Tensor | None:
        """Compute logits of `rows` rows, the first `count` of which belong to the step, and draw their tokens."""
        if not count:
            return None
        model = self.forward.model
        drawn = self.batch.rows

        def call() -> None:
            model.logits(self.batch.buffers.logit_rows.tensor[:rows])
            self.sampler.draw(model.logits_view(rows), drawn, filtered=kind == DRAWS[True])

        self.forward.recorder.run(kind, rows, 0, call, (count, 0))
        return self.sampler.drawn(model.logits_view(count), drawn)

    def _draft(self, plan: StepPlan, result: StepResult, positions: NDArray[np.int64]) -> None:
        """Collect drafts for the next step: proposals, and the text that grammars force. positions: see `Proposals.run`."""
        proposed: Drafts = {}
        if self.batch.undrafted:
            plan = self._with_budgets(plan)
        if plan.draft_budget:
            begin = time.perf_counter()
            self._guess(plan, result, positions, proposed)
            result.draft_seconds = time.perf_counter() - begin
        result.proposer_off = self._why_off()
        if self.most_forced and self.batch.masks:
            self._propose_forced(plan, result, proposed)
        if self._share is not None:
            proposed = self._share(proposed)
        if proposed:
            result.num_proposed = self.batch.drafts.hold(proposed)

    def _with_budgets(self, plan: StepPlan) -> StepPlan:
        """Set the budgets of sequences without drafts to 0. They stay in the plan, because a draft's KV cache must keep
        up.
        """
        undrafted = self.batch.undrafted
        budgets = {slot: 0 if slot in undrafted else budget for slot, budget in plan.draft_budget.items()}
        return replace(plan, draft_budget=budgets)

    def _apply(self, plan: StepPlan) -> None:
        # Before `batch.apply`, which drops the requests whose last tokens the proposer has yet to see.
        if self.proposals is not None and plan.removed:
            self.proposals.finish(plan.removed)
        left = self.batch.apply(plan)
        if self.facts is not None:
            self.facts.forget(plan.removed)
        if self.drafting is not None:
            self.drafting.apply(plan)
        if self.proposals is not None:
            self.proposals.apply(left, plan.new)

    def _compute(self, step: StepInput, result: StepResult) -> None:
        """Run the forward pass and the sampling, replayed from recordings if possible."""
        logits = step.logits
        self.forward.adapted = step.adapters
        if logits is not None and self._shares_memory and self.forward.captured(len(step.slots)):
            self._replay(step, logits)
        else:
            with torch.inference_mode():
                self._run(step, result)

    def _run(self, step: StepInput, result: StepResult) -> None:
        """Run the forward pass, and sample every row of logits in chunks of `max_logits`."""
        if self.pooler is not None:
            self.pooler.begin(step, self.batch)
        views = self.batch.views(step)
        self._fill_states(step)
        given = self._given(step)
        wanted = self._wanted(step, given)
        self.forward.run(views, given=given, wanted=wanted)
        # A step that continues computes only generated tokens.
        if self.batch.scored and not step.continues and self.forward.has_head:
            score_prompts(step, self.batch, result, self._logits, self.max_logits, self.sampler)
        if self.pooler is not None:
            self.pooler.run(step, self.batch, result)
        num_rows = len(step.positions)
        positions = step.positions if wanted is None else np.arange(num_rows)
        for start in range(0, num_rows, self.max_logits):
            end = start + self.max_logits
            logits = self._logits(positions[start:end])
            self.sampler.sample(logits, self.batch.rows, start, self._run_sampling)
        if 0 < num_rows <= self.max_logits:
            step.logits = logits  # a step that continues this one replays into the same rows

    def _wanted(self, step: StepInput, given: InputEmbeddings | None) -> NDArray[np.int64] | None:
        """Return the rows of a step that its last blocks compute, those that sample; None: all rows.

        All are computed where prompts are scored or pooled, where answers name the chosen experts, for drafts that read
        hidden states, for drafts that are trees, and for pictures that some blocks add to.
        """
        if self.forward.tail is None or self._reads_every_row or step.continues or step.trees is not None:
            return None
        if len(step.positions) == step.num_tokens or (self.batch.scored and scores_some(step, self.batch)):
            return None
        return step.positions if given is None or given.added is None else None

    @property
    def _reads_every_row(self) -> bool:
        """Whether this engine reads results of all tokens: for facts of answers, for vectors, or for drafts."""
        if self.facts is not None or self.pooler is not None:
            return True
        if self.proposals is not None and self.proposals.needs_hidden:
            return True
        return isinstance(self.drafting, HeadsPass) or (self.drafting is not None and self.drafting.states is not None)

    def _fill_states(self, step: StepInput) -> None:
        """Fill the states of cross attention of the sequences that begin in this step."""
        if step.continues or not self.batch.encoded:
            return
        for slot, num_computed in zip(step.slots.tolist(), step.num_computed.tolist(), strict=True):
            if num_computed == 0:
                self.forward.fill_states(self.batch.tables.of_slot(slot), self.batch.encoded[slot])

    def _given(self, step: StepInput) -> InputEmbeddings | None:
        """Return the given embeddings of the step's prompts, or None."""
        embedded = self.batch.embedded
        if not embedded or step.continues:
            return None
        return input_embeddings(embedded, step.slots.tolist(), step.cu_seqlens.tolist(), step.num_computed.tolist())

    def _replay(self, step: StepInput, logits: torch.Tensor) -> None:
        """Replay forward pass and sampling from recordings, which read all input from the step's buffers."""
        self.forward.replay(len(step.slots))
        self.sampler.sample(logits, self.batch.rows, 0, self._run_sampling)

    def _logits(self, positions: Sequence[int] | NDArray[np.int64]) -> torch.Tensor:
        """Compute the logits after some tokens of the step, at most `max_logits`; valid until the next call."""
        count = len(positions)
        self.batch.buffers.logit_rows.array[:count] = positions
        return self.forward.logits(count)

    def _run_sampling(self, kind: str, count: int, call: Callable[[], None]) -> None:
        """Run the kernel's call of this kind on `count` rows, recorded or replayed if possible."""
        self.forward.recorder.run(kind, count, 0, call)

    def _propose_forced(self, plan: StepPlan, result: StepResult, proposed: Drafts) -> None:
        """Add tokens of text that grammars force. They replace a proposer's drafts, which are less certain."""
        masks = self.batch.masks
        for slot in result.slots.tolist():
            mask = masks.get(slot)
            if mask is None or slot in self.batch.undrafted:
                continue
            limit = self.most_forced
            budget = plan.draft_budget.get(slot, 0)
            if budget:
                limit = min(limit, budget)
            limit = self.batch.drafts.room(slot, limit)
            drafts = mask.forced(self.batch.tokens.output(slot))
            if drafts and limit > 0:
                proposed[slot] = drafts[:limit]
                # These tokens were not drawn, so a rule of acceptance must not use the distributions of the replaced drafts.
                self.batch.columns.forget_drawn(slot)
                self.batch.trees.pop(slot, None)

    def _guess(self, plan: StepPlan, result: StepResult, positions: NDArray[np.int64], proposed: Drafts) -> None:
        """Add drafts of the proposer, or of the draft model or heads. positions: see `Proposals.run`."""
        if self.proposals is not None:
            self.proposals.run(plan, result, positions, proposed)
        if self.drafting is not None:
            try:
                self.drafting.run(plan, result, positions, proposed)
            except Exception as error:  # answers do not depend on drafts
                proposed.clear()
                self.drafting = None
                self.proposer_off = f"Drafting failed: {error}. There are no drafts until the engine starts anew."
                logger.exception("%s", self.proposer_off)

    def _why_off(self) -> str:
        """Return why drafting is off, if it is; a proposer that is off is dropped."""
        if self.proposals is not None and self.proposals.off:
            self.proposer_off = self.proposals.off
            self.proposals = None
        return self.proposer_off
