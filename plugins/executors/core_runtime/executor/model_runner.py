"""The model runner: one step from plan to result.

Owns: the order of a step: batch, forward, logits in chunks, sampling, proposals; what is recorded of the sampling.
Never does: schedule, allocate blocks, load weights, read sampled rows (`core_runtime.executor.verify`).
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

from core.api.step_plan import SequenceKey, Slot, StepPlan, StepResult
from core_runtime.contracts import ProposerInput, RequestFacts
from core_runtime.executor.batch import PersistentBatch, StepInput
from core_runtime.executor.checked_proposer import CheckedProposer
from core_runtime.executor.draft_pass import DraftPass
from core_runtime.executor.forward import HEAD, ForwardPass
from core_runtime.executor.given_rows import GivenRows, given_rows
from core_runtime.executor.heads_pass import HeadsPass
from core_runtime.executor.held_drafts import Drafts
from core_runtime.executor.pooled import Pooler
from core_runtime.executor.prompt_scores import score_prompts, scores_some
from core_runtime.executor.taken_tokens import TakenTokens
from core_runtime.executor.verify import keep_tokens, verify_drafts
from core_runtime.sampling import Sampler
from core_runtime.sampling.draft_tree import DraftTree

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Prepared:
    """A step whose arrays lie in the buffers.

    plan: as it came.
    settled: with its rows as they are now.
    step: which sequence each part of the arrays belongs to.
    drafts: that it verifies, by slot.
    """

    plan: StepPlan
    settled: StepPlan
    step: StepInput
    drafts: Drafts


class ModelRunner:
    """Runs steps on one model.

    proposer: that guesses by itself, or None.
    drafting: the passes of a draft or of draft heads, or None.
    tree: the shape of its drafts; None: they are chains.
    verifies_trees: whether a tree can be verified; else its first chain is.
    most_forced: tokens of forced text that are drafted for a sequence with a grammar; 0 where nobody would verify them.
    pooler: of a model whose hidden states are the answer, or None.

    proposer_off: why nothing guesses any more; empty while something does, or nothing ever did.
    """

    def __init__(
        self,
        forward: ForwardPass,
        batch: PersistentBatch,
        sampler: Sampler,
        proposer: CheckedProposer | None,
        most_forced: int = 0,
        drafting: DraftPass | HeadsPass | None = None,
        tree: DraftTree | None = None,
        verifies_trees: bool = False,
        pooler: Pooler | None = None,
    ) -> None:
        self.forward = forward
        self.batch = batch
        self.sampler = sampler
        self.proposer = proposer
        self.drafting = drafting
        self.most_forced = most_forced
        self.tree = tree
        self.verifies_trees = verifies_trees
        self.pooler = pooler
        self.max_logits = forward.model.max_logits
        self._step_hooks = forward.model.kernels.step_hooks
        self._shares_memory = batch.buffers.shared
        self.proposer_off = ""
        self._num_told: dict[Slot, int] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        """Update the batch, run the model on the scheduled tokens, sample, verify drafts, propose new ones."""
        prepared = self.prepare(plan)
        return StepResult() if prepared is None else self.compute(prepared)

    def prepare(self, plan: StepPlan) -> Prepared | None:
        """Update the batch, and fill the step's buffers; None where there is nothing to compute."""
        for begin_step in self._step_hooks:
            begin_step()
        self._apply(plan)
        if not plan.total_num_tokens:
            return None
        settled, drafts = self.batch.drafts.settle(plan)
        if not settled.total_num_tokens:
            return None
        step = self.batch.step_input(settled, drafts)
        return Prepared(plan, settled, step, drafts)

    def compute(self, prepared: Prepared) -> StepResult:
        """Run a step that was prepared, and wait for everything that comes of it."""
        result = StepResult()
        step = prepared.step
        settled = prepared.settled
        self._compute(step, result)
        keep = verify_drafts if step.drafts else keep_tokens
        positions = keep(step, self.batch, result)
        if step.trees is not None and step.trees.moves:
            self.forward.move(step.trees.moves)
        if prepared.plan.num_drafts:
            result.num_verified = {slot: len(token_ids) for slot, token_ids in prepared.drafts.items()}
            result.same_slots = result.same_slots and len(settled.slots) == len(prepared.plan.slots)
        self._draft(settled, result, positions)
        return result

    @property
    def guesses(self) -> bool:
        """Whether anything here proposes drafts, for which it must know the tokens before them."""
        return self.proposer is not None or self.drafting is not None

    def is_plain(self, prepared: Prepared) -> bool:
        """Whether the device does the step alone: its tokens are for the next step there, and for the host to read later."""
        if self.guesses or prepared.plan.num_drafts or self.batch.pooled or self.batch.embedded:
            return False
        if self.batch.scored and scores_some(prepared.step, self.batch):
            return False
        rows = self.batch.rows
        return rows.count <= self.max_logits and self.sampler.draws_alone(rows)

    def launch(self, step: StepInput, taken: TakenTokens | None = None) -> torch.Tensor | None:
        """Give a plain step to the device, and wait for nothing.

        Returns what the host wants of it, see `Sampler.draw`; None where nothing is sampled.

        taken: those of its tokens that only the device has; None: the host has written all.
        """
        count = len(step.positions)
        with torch.inference_mode():
            if taken is not None and taken.in_order:
                self.forward.follow(lambda: self.batch.views(step), taken)
                rows = self.forward.recorder.size(HEAD, count) or count
                return self._draw(count, rows)
            views = self.batch.views(step)
            self.batch.buffers.logit_rows.array[:count] = step.positions
            rows = self.forward.choose(count)
            self.forward.run(views, taken)
            return self._draw(count, rows)

    def _draw(self, count: int, rows: int) -> torch.Tensor | None:
        """Logits of `rows` rows, of which `count` are the step's own, and the tokens drawn from them."""
        if not count:
            return None
        logits = self.forward.head(count, rows)
        return self.sampler.draw(logits, self.batch.rows, self._run_sampling)

    def _draft(self, plan: StepPlan, result: StepResult, positions: NDArray[np.int64]) -> None:
        """Hold drafts for the next step: guesses, and the text that grammars force. positions: see `_propose`."""
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
        if proposed:
            result.num_proposed = self.batch.drafts.hold(proposed)

    def _with_budgets(self, plan: StepPlan) -> StepPlan:
        """The plan with no drafts wanted for sequences that have none; a draft with a KV cache goes on with them."""
        undrafted = self.batch.undrafted
        budgets = {slot: 0 if slot in undrafted else budget for slot, budget in plan.draft_budget.items()}
        return replace(plan, draft_budget=budgets)

    def _apply(self, plan: StepPlan) -> None:
        if self.proposer is not None and plan.removed:
            self._tell_rest(self.proposer, plan.removed)
        left = self.batch.apply(plan)
        if self.drafting is not None:
            self.drafting.apply(plan)
        if self.proposer is None:
            return
        for key in left:
            self.proposer.on_finished(key)
        for new in plan.new:
            request = new.request
            facts = RequestFacts(request.tenant, request.cache_salt)
            known = request.prompt_token_ids + new.output_token_ids
            self._num_told[new.slot] = len(known)
            self.proposer.on_request(request.key, facts)
            self.proposer.on_start(request.key, known)

    def _compute(self, step: StepInput, result: StepResult) -> None:
        """The forward pass and the sampling, by recordings where there are some."""
        logits = step.logits
        if logits is not None and self._shares_memory and self.forward.captured(len(step.slots)):
            self._replay(step, logits)
        else:
            with torch.inference_mode():
                self._run(step, result)

    def _run(self, step: StepInput, result: StepResult) -> None:
        """The forward pass and every row of logits."""
        if self.pooler is not None:
            self.pooler.begin(step, self.batch)
        self.forward.run(self.batch.views(step), given=self._given(step))
        if self.batch.scored and not step.continues:
            score_prompts(step, self.batch, result, self._logits, self.max_logits, self.sampler)
        if self.pooler is not None:
            self.pooler.run(step, self.batch, result)
        num_rows = len(step.positions)
        for start in range(0, num_rows, self.max_logits):
            end = start + self.max_logits
            logits = self._logits(step.positions[start:end])
            self.sampler.sample(logits, self.batch.rows, start, self._run_sampling)
        if 0 < num_rows <= self.max_logits:
            step.logits = logits  # a step that continues this one replays into the same rows

    def _given(self, step: StepInput) -> GivenRows | None:
        """The embeddings that the step's prompts bring with them."""
        embedded = self.batch.embedded
        if not embedded or step.continues:
            return None
        return given_rows(embedded, step.slots.tolist(), step.cu_seqlens.tolist(), step.num_computed.tolist())

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

    def _propose_forced(self, plan: StepPlan, result: StepResult, proposed: Drafts) -> None:
        """Add the tokens of text that grammars force; they go before a proposer's, which are guesses."""
        masks = self.batch.masks
        for slot in result.slots.tolist():
            mask = masks.get(slot)
            if mask is None or slot in self.batch.undrafted:
                continue
            limit = self.most_forced
            budget = plan.draft_budget.get(slot, 0)
            if budget:
                limit = min(limit, budget)
            drafts = mask.forced(self.batch.tokens.output(slot))
            if drafts and limit > 0:
                proposed[slot] = drafts[:limit]
                self.batch.columns.forget_drawn(slot)
                self.batch.trees.pop(slot, None)

    def _untold(self, slot: Slot) -> list[int]:
        """The newest tokens of a sequence, which the proposer has not seen: it is not asked in every step."""
        token_ids = self.batch.tokens.behind(slot, self._num_told[slot])
        self._num_told[slot] += len(token_ids)
        return token_ids

    def _tell_rest(self, proposer: CheckedProposer, leaving: Sequence[Slot]) -> None:
        """Give a proposer that learns from answers the end of those for which it was not asked lately."""
        keys: list[SequenceKey] = []
        token_ids: list[list[int]] = []
        for slot in leaving:
            request = self.batch.requests[slot]
            if request is None or proposer.needs_hidden:
                continue
            untold = self._untold(slot)
            if untold:
                keys.append(request.key)
                token_ids.append(untold)
        if keys:
            proposer.propose(ProposerInput(keys, token_ids, [0] * len(keys)))

    def _guess(self, plan: StepPlan, result: StepResult, positions: NDArray[np.int64], proposed: Drafts) -> None:
        """Add guesses by whatever guesses here. positions: see `_propose`."""
        if self.proposer is not None:
            self._propose(self.proposer, plan, result, positions, proposed)
        if self.drafting is not None:
            try:
                self.drafting.run(plan, result, positions, proposed)
            except Exception as error:  # the answer needs no guesses
                proposed.clear()
                self.drafting = None
                self.proposer_off = f"Drafting failed: {error}. There are no drafts until the engine starts anew."
                logger.exception("%s", self.proposer_off)

    def _why_off(self) -> str:
        """Why nothing guesses any more, if something did; it is asked no more then."""
        if self.proposer is not None and self.proposer.off:
            self.proposer_off = self.proposer.off
            self.proposer = None
        return self.proposer_off

    def _propose(
        self,
        proposer: CheckedProposer,
        plan: StepPlan,
        result: StepResult,
        positions: NDArray[np.int64],
        proposed: Drafts,
    ) -> None:
        """Ask for drafts. positions: of the step's tokens behind which each sequence's newest token was sampled."""
        if not len(result.slots):
            return
        slots = result.slots.tolist()
        token_ids = [self._untold(slot) for slot in slots]
        keys = [self.batch[slot].key for slot in slots]
        held = self.batch.drafts
        budget = [held.room(slot, plan.draft_budget.get(slot, 0)) for slot in slots]
        hidden: torch.Tensor | None = None
        if proposer.needs_hidden:
            hidden = self.forward.residual(positions.tolist())
        proposals = proposer.propose(ProposerInput(keys, token_ids, budget, hidden))
        for slot, drafts, limit in zip(slots, proposals, budget, strict=True):
            if drafts and limit > 0:
                proposed[slot] = self._shaped(slot, drafts[:limit])

    def _shaped(self, slot: Slot, drafts: list[int]) -> list[int]:
        """The drafts of a tree, or its first chain where a row's logits depend on the drafts before it."""
        if self.tree is None:
            return drafts
        columns = self.batch.columns
        if not self.verifies_trees or columns.adjusts[slot] or columns.masked[slot]:
            self.batch.trees.pop(slot, None)
            return [drafts[index] for index in self.tree.first_chain if index < len(drafts)]
        self.batch.trees[slot] = self.tree
        return drafts
