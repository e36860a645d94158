"""The calls of draft heads after a step of their target.

Owns: their order, and the input of the heads. Never does: verify drafts, or decide how many are wanted (the scheduler does).
Called by: the model runner, once a step whose plan allows drafts.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.api.errors import PluginError
from core.api.step_plan import SequenceKey, StepPlan, StepResult
from core_runtime.contracts import DraftHeads, DraftView, HearsResults
from core_runtime.executor.drafts.pending import Drafts
from core_runtime.executor.drafts.rows import DraftRows, Logits, note
from core_runtime.executor.steps.batch import PersistentBatch
from core_runtime.sampling import Sampler
from core_runtime.sampling.sampler import run_plainly


class HeadsPass:
    """Runs a plugin's own draft heads, which have no KV cache.

    name: name of the plugin, for errors.
    taps: [T, n], hidden states of the target's step that the heads read, one row per token; None: none.
    vocab_size: logits of a row.
    """

    def __init__(
        self,
        heads: DraftHeads,
        name: str,
        batch: PersistentBatch,
        sampler: Sampler,
        taps: Tensor | None,
        vocab_size: int,
    ) -> None:
        self.heads = heads
        self.name = name
        self.batch = batch
        self._taps = taps
        self._vocab_size = vocab_size
        # Not recorded: the plugin chooses where its logits lie, so a recording of the sampling would not stay valid.
        self._rows = DraftRows(batch, sampler, len(batch.requests), run_plainly)
        self._listener = heads if isinstance(heads, HearsResults) else None
        self._drafted: set[SequenceKey] = set()

    def apply(self, plan: StepPlan) -> None:
        """Do nothing: heads have no state of sequences."""

    def run(self, plan: StepPlan, result: StepResult, positions: NDArray[np.int64], drafts: Drafts) -> None:
        """Add to the drafts of the next step. positions: rows of the tokens after which each newest token was sampled."""
        # Before drafting, which replaces the set of sequences whose drafts were verified.
        self._report_accepted(result)
        budgets = np.array([plan.draft_budget.get(slot, 0) for slot in result.slots.tolist()], np.int32)
        chosen = (budgets > 0).nonzero()[0]
        if not len(chosen):
            return
        slots = result.slots[chosen].astype(np.int64)
        budgets = budgets[chosen]
        known = self.batch.tokens.num_tokens(slots)
        newest = self.batch.tokens.array[slots, known - 1].astype(np.int64)
        with torch.inference_mode():
            view = self._view(slots, newest, positions[chosen])
            for place in range(int(budgets.max())):
                logits = _parts(self._logits(view, place))
                token_ids = self._rows.draw(logits, slots, known, place)
                note(drafts, slots, token_ids)
                goes_on = ((token_ids >= 0) & (budgets > place + 1)).nonzero()[0]
                if not len(goes_on):
                    break
                slots = slots[goes_on]
                known = known[goes_on]
                budgets = budgets[goes_on]
                token_ids = token_ids[goes_on]
                self._rows.write(slots, known, place, token_ids)
                view = self._narrowed(view, goes_on, token_ids)
        if self._listener is not None:
            self._drafted = {self.batch[slot].key for slot in drafts}

    def _report_accepted(self, result: StepResult) -> None:
        """Report to the heads how many of their drafts this step accepted."""
        if self._listener is None or not self._drafted:
            return
        keys: list[SequenceKey] = []
        accepted: list[int] = []
        for slot in result.slots.tolist():
            key = self.batch[slot].key
            if key in self._drafted:
                keys.append(key)
                num_kept = len(result.more_token_ids.get(slot, ()))
                accepted.append(num_kept)
        self._drafted = set()
        if keys:
            self._listener.on_result(keys, accepted)

    def _view(self, slots: NDArray[np.int64], token_ids: NDArray[np.int64], positions: NDArray[np.int64]) -> DraftView:
        """Make the heads' input for the first call."""
        keys = [self.batch[slot].key for slot in slots.tolist()]
        if self._taps is None:
            return DraftView(keys, torch.from_numpy(token_ids))
        device = self._taps.device
        hidden = self._taps[torch.from_numpy(positions).to(device)]
        return DraftView(keys, torch.from_numpy(token_ids).to(device), hidden)

    def _narrowed(self, view: DraftView, rows: NDArray[np.int64], token_ids: NDArray[np.int64]) -> DraftView:
        """Make the input of the next call: some of the sequences, with the drafts that were just drawn."""
        keys = [view.keys[row] for row in rows.tolist()]
        device = view.tokens.device
        hidden = None if view.hidden is None else view.hidden[torch.from_numpy(rows).to(device)]
        return DraftView(keys, torch.from_numpy(token_ids).to(device), hidden)

    def _logits(self, view: DraftView, place: int) -> Tensor:
        """Call the heads and check the shape and dtype of their logits. Raises PluginError for wrong ones."""
        logits = self.heads.logits(view, place)
        expected = len(view.keys), self._vocab_size
        is_right = logits.dim() == 2 and len(logits) == expected[0] and logits.shape[1] >= expected[1]
        if not is_right or logits.dtype is not torch.float32:
            shape = tuple(logits.shape)
            raise PluginError(f"logits answered {logits.dtype} {shape}, expected torch.float32 {expected}.")
        return logits


def _parts(logits: Tensor) -> Logits:
    """Return a function that slices these logits."""

    def part(start: int, end: int) -> Tensor:
        return logits[start:end]

    return part
