"""The drafts of a plugin that needs no model of ours.

Owns: which tokens of each sequence the plugin has been given, and the shape of its drafts. Never does: propose, or verify.
Called by: the model runner, once a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from core.api.step_plan import NewSequence, SequenceKey, Slot, StepPlan, StepResult
from core_runtime.contracts import ProposerInput, RequestFacts
from core_runtime.executor.drafts.checked_proposer import CheckedProposer
from core_runtime.executor.drafts.pending import Drafts
from core_runtime.executor.forward import ForwardPass
from core_runtime.executor.steps.batch import PersistentBatch


class Proposals:
    """The proposer of one model runner.

    verifies_trees: whether a tree can be verified; else its first chain is.
    needs_hidden: whether the proposer reads hidden states.
    """

    def __init__(
        self,
        proposer: CheckedProposer,
        batch: PersistentBatch,
        forward: ForwardPass,
        *,
        verifies_trees: bool = False,
    ) -> None:
        self.needs_hidden = proposer.needs_hidden
        self._proposer = proposer
        self._batch = batch
        self._forward = forward
        self._tree = proposer.tree
        self._verifies_trees = verifies_trees
        self._num_given: dict[Slot, int] = {}

    @property
    def off(self) -> str:
        """Why the proposer is switched off; empty while it is in use."""
        return self._proposer.off

    def finish(self, leaving: Sequence[Slot]) -> None:
        """Give the proposer the last tokens of sequences that leave, because it may learn from answers.

        Called before the batch drops their requests.
        """
        keys: list[SequenceKey] = []
        token_ids: list[list[int]] = []
        for slot in leaving:
            request = self._batch.requests[slot]
            if request is None or self.needs_hidden:
                continue
            unknown = self._unknown(slot)
            if unknown:
                keys.append(request.key)
                token_ids.append(unknown)
        if keys:
            self._proposer.propose(ProposerInput(keys, token_ids, [0] * len(keys)))

    def apply(self, left: Iterable[SequenceKey], new: Iterable[NewSequence]) -> None:
        """Tell the proposer which sequences have left, and which are new in the batch."""
        for key in left:
            self._proposer.on_finished(key)
        for each in new:
            request = each.request
            extra_args, length = request.params.extra_args, len(request.prompt_token_ids)
            facts = RequestFacts(request.tenant, request.cache_salt, request.adapter, extra_args, length)
            known = request.prompt_token_ids + each.output_token_ids
            self._num_given[each.slot] = len(known)
            self._proposer.on_request(request.key, facts)
            self._proposer.on_start(request.key, known)

    def run(self, plan: StepPlan, result: StepResult, positions: NDArray[np.int64], proposed: Drafts) -> None:
        """Add drafts to `proposed`. positions: rows of the step after which each sequence's newest token was sampled."""
        if not len(result.slots):
            return
        slots = result.slots.tolist()
        token_ids = [self._unknown(slot) for slot in slots]
        keys = [self._batch[slot].key for slot in slots]
        held = self._batch.drafts
        budget = [held.room(slot, plan.draft_budget.get(slot, 0)) for slot in slots]
        hidden: torch.Tensor | None = None
        if self.needs_hidden:
            hidden = self._forward.residual(positions.tolist())
        proposals = self._proposer.propose(ProposerInput(keys, token_ids, budget, hidden))
        for slot, drafts, limit in zip(slots, proposals, budget, strict=True):
            if drafts and limit > 0:
                proposed[slot] = self._shaped(slot, drafts[:limit])

    def _unknown(self, slot: Slot) -> list[int]:
        """Return a sequence's tokens since the proposer's last call; it is not called in every step."""
        token_ids = self._batch.tokens.behind(slot, self._num_given[slot])
        self._num_given[slot] += len(token_ids)
        return token_ids

    def _shaped(self, slot: Slot, drafts: list[int]) -> list[int]:
        """Return the drafts of a tree, or its first chain if a row's logits depend on the drafts before it."""
        if self._tree is None:
            return drafts
        columns = self._batch.columns
        if not self._verifies_trees or columns.adjusts[slot] or columns.masked[slot]:
            self._batch.trees.pop(slot, None)
            return [drafts[index] for index in self._tree.first_chain if index < len(drafts)]
        self._batch.trees[slot] = self._tree
        return drafts
