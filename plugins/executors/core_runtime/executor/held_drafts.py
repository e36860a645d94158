"""Drafts of running sequences, from the step that proposed them to the one that verifies them.

Owns: these drafts, and a plan's rows as they are once it is known what earlier steps have accepted. Never does: propose,
verify, or decide how many drafts there may be. Called by: the persistent batch (sequences that come and go) and the model
runner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from core.api.step_plan import Int32Array, Slot, StepPlan
from core_runtime.executor.token_table import TokenTable

Drafts = dict[Slot, list[int]]


class HeldDrafts:
    """Drafts by slot. tokens: what is known of each sequence."""

    def __init__(self, num_slots: int, tokens: TokenTable) -> None:
        self._tokens = tokens
        self._max_length = [0] * num_slots
        self._held: Drafts = {}

    def start(self, slot: Slot, max_length: int) -> None:
        """A sequence takes a slot; it ends with `max_length` tokens."""
        self._max_length[slot] = max_length

    def end(self, slot: Slot) -> None:
        """The sequence leaves its slot."""
        self._held.pop(slot, None)

    def room(self, slot: Slot, budget: int) -> int:
        """How many of `budget` drafts fit behind the known tokens: the token that a step samples needs a place of its own."""
        num_left = self._max_length[slot] - self._tokens.count(slot)
        return max(min(budget, num_left - 1), 0)

    def hold(self, proposed: Mapping[Slot, list[int]]) -> dict[Slot, int]:
        """Keep drafts for the next step, as far as they fit. Returns how many, for sequences that have any."""
        counts: dict[Slot, int] = {}
        for slot, drafts in proposed.items():
            count = self.room(slot, len(drafts))
            if count:
                self._held[slot] = drafts[:count]
                counts[slot] = count
        return counts

    def settle(self, plan: StepPlan) -> tuple[StepPlan, Drafts]:
        """A plan with its rows as they are now, and the drafts that it verifies. Held drafts of its other rows are gone."""
        if not plan.num_drafts:
            if self._held:
                self._take(plan.slots)
            return plan, {}
        held = self._take(plan.slots)
        drafts: Drafts = {}
        lens = plan.query_lens.copy()
        computed = plan.num_computed.copy()
        is_full = np.zeros(len(lens), bool)
        for row, slot in enumerate(plan.slots.tolist()):
            most = plan.num_drafts.get(slot)
            if most is None:
                continue
            verified = held.get(slot, [])[:most]
            num_known = self._tokens.count(slot)
            num_pending = lens[row] - most
            lens[row] = num_pending + len(verified)
            computed[row] = num_known - num_pending
            is_full[row] = num_known >= self._max_length[slot]
            if verified:
                drafts[slot] = verified
        if is_full.any():
            return _without(plan, is_full, lens, computed), drafts
        settled = replace(plan, query_lens=lens, num_computed=computed, total_num_tokens=int(lens.sum()))
        return settled, drafts

    def _take(self, slots: Int32Array) -> Drafts:
        """The drafts of some sequences, which are held no longer."""
        taken: Drafts = {}
        for slot in slots.tolist():
            drafts = self._held.pop(slot, None)
            if drafts:
                taken[slot] = drafts
        return taken


def _without(plan: StepPlan, is_full: np.ndarray, lens: Int32Array, computed: Int32Array) -> StepPlan:
    """A plan without the rows of sequences that have ended, of which the scheduler had not heard. They hold no drafts."""
    rest = ~is_full
    return replace(
        plan,
        slots=plan.slots[rest],
        query_lens=lens[rest],
        num_computed=computed[rest],
        total_num_tokens=int(lens[rest].sum()),
    )
