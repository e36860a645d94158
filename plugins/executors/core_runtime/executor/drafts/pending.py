"""Pending drafts of running sequences, from the step that proposed them to the step that verifies them.

Owns: these drafts, and a plan's rows once it is known what earlier steps have accepted. Never does: propose,
verify, or decide how many drafts there may be. Called by: the persistent batch (sequences that come and go) and the model
runner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from core.api.step_plan import Int32Array, Slot, StepPlan
from core_runtime.executor.steps.token_table import TokenTable

Drafts = dict[Slot, list[int]]


class PendingDrafts:
    """Pending drafts by slot. tokens: known tokens of each sequence."""

    def __init__(self, num_slots: int, tokens: TokenTable) -> None:
        self._tokens = tokens
        self._max_length = [0] * num_slots
        self._held: Drafts = {}

    def start(self, slot: Slot, max_length: int) -> None:
        """Start a sequence, which ends at `max_length` tokens."""
        self._max_length[slot] = max_length

    def end(self, slot: Slot) -> None:
        """Drop the drafts of a sequence that leaves its slot."""
        self._held.pop(slot, None)

    def room(self, slot: Slot, budget: int) -> int:
        """Return how many of `budget` drafts fit after the known tokens; the token that a step samples needs a place too."""
        num_left = self._max_length[slot] - self._tokens.count(slot)
        return max(min(budget, num_left - 1), 0)

    def hold(self, proposed: Mapping[Slot, list[int]]) -> dict[Slot, int]:
        """Keep drafts for the next step, as far as they fit. Returns the number kept, for sequences that have any."""
        counts: dict[Slot, int] = {}
        for slot, drafts in proposed.items():
            count = self.room(slot, len(drafts))
            if count:
                self._held[slot] = drafts[:count]
                counts[slot] = count
        return counts

    def settle(self, plan: StepPlan) -> tuple[StepPlan, Drafts]:
        """Return the plan with its actual rows, and the drafts that it verifies. Pending drafts of its other rows are
        dropped.

        The scheduler plans a step before the previous one has reported how many drafts it accepted.
        """
        if not plan.num_drafts:
            if self._held:
                # Drafts that this step does not verify are outdated after it.
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
            # The scheduler reserved `most` rows for drafts; the actual start moves by the drafts accepted in the meantime.
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
        """Remove and return the pending drafts of some sequences."""
        taken: Drafts = {}
        for slot in slots.tolist():
            drafts = self._held.pop(slot, None)
            if drafts:
                taken[slot] = drafts
        return taken


def _without(plan: StepPlan, is_full: np.ndarray, lens: Int32Array, computed: Int32Array) -> StepPlan:
    """Return the plan without sequences that have ended before the scheduler knew of it. They have no drafts."""
    rest = ~is_full
    return replace(
        plan,
        slots=plan.slots[rest],
        query_lens=lens[rest],
        num_computed=computed[rest],
        total_num_tokens=int(lens[rest].sum()),
    )
