"""Progress of the draft model in each sequence.

Owns: the tokens of each slot whose keys and values the draft has computed, and which of its own drafts it computed on the way.
Never does: compute, or know a model. Called by: the draft pass.

Slot i of a sequence holds the draft's keys and values of token i. After a step they exist for every known token, the
newest included, and for all drafts but the last one. Accepted drafts need not be computed again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.api.step_plan import Int32Array, NewSequence, Slot, StepPlan
from core_runtime.executor.steps.batch import PersistentBatch


@dataclass(slots=True)
class DraftWork:
    """The work of a first pass: B sequences, each with at least one token.

    slots: int64 [B], slots of the batch.
    starts: int32 [B], tokens of each that are already computed.
    lens: int32 [B], tokens that the pass computes.
    counts: int32 [B], drafts to draw after the pass; 0: the draft only keeps up.
    known: int32 [B], known tokens of each.
    num_masks: int32 [B], mask tokens after the known ones that stand for drafts.
    """

    slots: NDArray[np.int64]
    starts: Int32Array
    lens: Int32Array
    counts: Int32Array
    known: Int32Array
    num_masks: Int32Array

    @property
    def all_lens(self) -> Int32Array:
        """Tokens that the pass computes, masks included, int32 [B]."""
        return self.lens + self.num_masks


class DraftProgress:
    """Computed tokens and drafts of the draft model, by slot. The draft pass owns it.

    most_drafts: maximum drafts of one sequence and step.
    most_tokens: maximum tokens of a first pass, over all sequences.
    max_length: length of the longest sequence that the draft can process.
    keeps_drafts: whether keys and values of drafts stay valid once these are accepted. With hidden states they are
        computed again from those of the target, and keys and values of masks belong to no draft.
    takes_states: whether the draft takes hidden states, of which only those of the latest step are available.
    """

    def __init__(
        self,
        batch: PersistentBatch,
        most_drafts: int,
        most_tokens: int,
        max_length: int,
        *,
        keeps_drafts: bool,
        takes_states: bool = False,
    ) -> None:
        num_slots = len(batch.requests)
        self._batch = batch
        self._most_tokens = most_tokens
        self._max_length = max_length
        self._num_computed = np.zeros(num_slots, np.int32)
        # drafts that were computed after the known tokens; -1: none
        self._drafts = np.full((num_slots, most_drafts), -1, np.int32) if keeps_drafts else None
        self._places = np.arange(most_drafts)
        self._takes_states = takes_states

    def start(self, new: NewSequence) -> None:
        """Start a sequence. For a cached prefix, its blocks hold what another sequence's draft computed."""
        self._num_computed[new.slot] = new.num_computed_tokens
        if self._drafts is not None:
            self._drafts[new.slot] = -1

    def work(self, plan: StepPlan, failed: Collection[Slot]) -> DraftWork | None:
        """Return the work of the first pass after a step; None if there is none. failed: slots that failed in the step."""
        planned = [slot in plan.draft_budget and slot not in failed for slot in plan.slots.tolist()]
        rows = np.array(planned).nonzero()[0]
        if not len(rows):
            return None
        slots = plan.slots[rows].astype(np.int64)
        ends_of_step = plan.num_computed[rows] + plan.query_lens[rows]
        budgets = np.array([plan.draft_budget[slot] for slot in slots.tolist()], np.int32)
        known = self._batch.tokens.num_tokens(slots)
        # in the middle of a prompt, the tokens after this step's chunk have not been computed by the target yet
        ends = np.where(budgets > 0, known, np.minimum(known - 1, ends_of_step))
        capacity = np.minimum(self._batch.tables.capacity(slots.tolist()), self._max_length)
        ends = np.minimum(ends, capacity)
        # at least the last known token must be computed, since its logits give the first draft
        starts = self._starts(slots, ends - (budgets > 0))
        if self._takes_states:
            # the target's hidden states of earlier steps are gone: tokens that it computed while the draft paused are skipped
            starts = np.minimum(np.maximum(starts, plan.num_computed[rows]), ends)
        lens = self._shared(ends - starts)
        is_complete = starts + lens == known
        counts = np.where(is_complete, np.minimum(budgets, capacity - known + 1), 0)
        chosen = (lens > 0).nonzero()[0]
        if not len(chosen):
            return None
        num_masks = np.zeros(len(chosen), np.int32)
        return DraftWork(slots[chosen], starts[chosen], lens[chosen], counts[chosen], known[chosen], num_masks)

    def computed(self, work: DraftWork) -> None:
        """Note that a first pass has computed its tokens."""
        self._num_computed[work.slots] = work.starts + work.lens
        if self._drafts is not None:
            self._drafts[work.slots] = -1

    def drafted(self, slots: NDArray[np.int64], place: int, token_ids: NDArray[np.int64]) -> None:
        """Note that a later pass has computed the drafts at `place`, counted from 0."""
        if self._drafts is not None:
            self._drafts[slots, place] = token_ids

    def _starts(self, slots: NDArray[np.int64], most: Int32Array) -> Int32Array:
        """Return the number of computed tokens of each sequence, at most `most`."""
        computed = self._num_computed[slots]
        if self._drafts is not None:
            tokens = self._batch.tokens.array
            last = tokens.shape[1] - 1
            places = np.minimum(computed[:, None] + self._places, last)
            agrees = tokens[slots[:, None], places] == self._drafts[slots]
            # Leading drafts that equal the tokens that followed were accepted: their keys and values are valid.
            computed = computed + np.cumprod(agrees, axis=1).sum(axis=1)
        starts: Int32Array = np.minimum(computed, most).astype(np.int32)
        return np.maximum(starts, 0)

    def _shared(self, lens: Int32Array) -> Int32Array:
        """Limit the tokens to one pass; sequences that come first are served first."""
        before = np.cumsum(lens) - lens
        room = np.maximum(self._most_tokens - before, 0)
        shared: Int32Array = np.minimum(lens, room).astype(np.int32)
        return shared
