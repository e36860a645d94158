"""How far the draft has come with each sequence.

Owns: the tokens of each slot whose keys and values the draft has computed, and which of its own drafts it computed on the way.
Never does: compute, or know a model. Called by: the draft pass.

In slot i of a sequence lie the draft's keys and values of token i. Behind a step they are there for every known token, the
newest included; behind those, for all drafts but the last one. Drafts that were accepted need not be computed again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.api.step_plan import Int32Array, NewSequence, Slot, StepPlan
from core_runtime.executor.batch import PersistentBatch


@dataclass(slots=True)
class DraftWork:
    """The sequences that a first pass computes. B sequences, each with at least one token.

    slots: int64 [B].
    starts: int32 [B], tokens of each that are computed already.
    lens: int32 [B], tokens that the pass computes.
    counts: int32 [B], drafts that each is to have then; 0: it only keeps up.
    known: int32 [B], known tokens of each.
    num_masks: int32 [B], tokens behind these that stand for drafts.
    """

    slots: NDArray[np.int64]
    starts: Int32Array
    lens: Int32Array
    counts: Int32Array
    known: Int32Array
    num_masks: Int32Array

    @property
    def all_lens(self) -> Int32Array:
        """int32 [B], tokens that the pass computes, masks included."""
        return self.lens + self.num_masks


class DraftProgress:
    """By slot.

    most_drafts: of one sequence and step.
    most_tokens: of a first pass, over all sequences.
    max_length: tokens of the longest sequence that the draft can see.
    keeps_drafts: whether keys and values of drafts hold once these are accepted; with hidden states they are computed
        again from those of the target, and those of masks are no drafts'.
    takes_states: whether the draft takes hidden states, of which only those of the latest step are there.
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
        # the drafts that were computed behind these, -1 where there is none
        self._drafts = np.full((num_slots, most_drafts), -1, np.int32) if keeps_drafts else None
        self._places = np.arange(most_drafts)
        self._takes_states = takes_states

    def start(self, new: NewSequence) -> None:
        """A sequence enters the batch. What its blocks hold of a cached prefix, another sequence's draft computed."""
        self._num_computed[new.slot] = new.num_computed_tokens
        if self._drafts is not None:
            self._drafts[new.slot] = -1

    def work(self, plan: StepPlan, failed: Collection[Slot]) -> DraftWork | None:
        """What a first pass behind a step computes; None where it has nothing to do. failed: in the step."""
        planned = [slot in plan.draft_budget and slot not in failed for slot in plan.slots.tolist()]
        rows = np.array(planned).nonzero()[0]
        if not len(rows):
            return None
        slots = plan.slots[rows].astype(np.int64)
        ends_of_step = plan.num_computed[rows] + plan.query_lens[rows]
        budgets = np.array([plan.draft_budget[slot] for slot in slots.tolist()], np.int32)
        known = self._batch.tokens.num_tokens(slots)
        # a sequence in the middle of its prompt has tokens that nobody has computed yet
        ends = np.where(budgets > 0, known, np.minimum(known - 1, ends_of_step))
        capacity = np.minimum(self._batch.tables.capacity(slots.tolist()), self._max_length)
        ends = np.minimum(ends, capacity)
        # something must be computed that gives the first draft
        starts = self._starts(slots, ends - (budgets > 0))
        if self._takes_states:
            # what the target computed while the draft paused left no hidden states
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
        """A first pass has computed its tokens."""
        self._num_computed[work.slots] = work.starts + work.lens
        if self._drafts is not None:
            self._drafts[work.slots] = -1

    def drafted(self, slots: NDArray[np.int64], place: int, token_ids: NDArray[np.int64]) -> None:
        """A later pass has computed the drafts at `place`, counted from 0."""
        if self._drafts is not None:
            self._drafts[slots, place] = token_ids

    def _starts(self, slots: NDArray[np.int64], most: Int32Array) -> Int32Array:
        """Tokens of each that are computed already, of which `most` count."""
        computed = self._num_computed[slots]
        if self._drafts is not None:
            tokens = self._batch.tokens.array
            last = tokens.shape[1] - 1
            places = np.minimum(computed[:, None] + self._places, last)
            agrees = tokens[slots[:, None], places] == self._drafts[slots]
            computed = computed + np.cumprod(agrees, axis=1).sum(axis=1)
        starts: Int32Array = np.minimum(computed, most).astype(np.int32)
        return np.maximum(starts, 0)

    def _shared(self, lens: Int32Array) -> Int32Array:
        """As many of these tokens as one pass computes, the first sequences first."""
        before = np.cumsum(lens) - lens
        room = np.maximum(self._most_tokens - before, 0)
        shared: Int32Array = np.minimum(lens, room).astype(np.int32)
        return shared
