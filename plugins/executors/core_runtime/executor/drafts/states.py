"""The target's hidden states that a draft reads: for each token, the state from which it was sampled.

Owns: the rows of the latest step, the last row of each sequence whose draft waits for more, and the row of unknown
states.
Never does: compute a layer, or decide which tokens are computed. Called by: the draft pass.

After a cached prefix, and where the draft paused, the state of one token is unknown. It is then all zeros, as for the
first token of a sequence.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from core.api.step_plan import Int32Array, StepPlan
from core_runtime.models.decoder import Decoder

Ints = NDArray[np.int64]


class HiddenStates:
    """Fills the draft's buffer `hidden`. The draft pass owns it.

    carries: the input of every pass after the first, see `DraftSpec`.
    num_slots: slots of the batch.
    """

    def __init__(self, target: Decoder, draft: Decoder, carries: Literal["residual", "normed"], num_slots: int) -> None:
        entry = draft.draft_entry
        assert entry is not None, "this draft takes no hidden states"
        self._entry = entry
        self._draft = draft
        self._carries = carries
        self._taps = target.workspace.buffer("taps")
        self._residual = draft.workspace.buffer("residual")
        num_rows = len(self._taps)
        hidden = draft.workspace.buffer("hidden")
        # rows of the step, then one per slot, then zeros (unknown state), then the state of mask tokens
        shape = num_rows + num_slots + 2, hidden.shape[1]
        self._rows = torch.zeros(shape, dtype=hidden.dtype, device=hidden.device)
        self._first_kept = num_rows
        self._unknown = num_rows + num_slots
        self._masked = self._unknown + 1
        entry.mask(self._rows[self._masked :])
        self._kept_at = np.full(num_slots, -1, np.int64)
        self._begins = np.zeros(num_slots, np.int64)
        self._ends = np.zeros(num_slots, np.int64)
        self._offsets = np.zeros(num_slots, np.int64)

    def start(self, slot: int) -> None:
        """Start a sequence: it has no state from earlier steps."""
        self._kept_at[slot] = -1

    def read(self, plan: StepPlan) -> None:
        """Project the hidden states of the target's step into the rows."""
        slots = plan.slots.astype(np.int64)
        lens = plan.query_lens.astype(np.int64)
        self._begins[slots] = plan.num_computed
        self._ends[slots] = plan.num_computed + lens
        self._offsets[slots] = np.cumsum(lens) - lens
        count = int(lens.sum())
        self._entry.project(self._taps[:count], self._rows[:count])

    def fill(self, slots: Ints, lens: Int32Array, starts: Int32Array, known: Int32Array) -> None:
        """Fill `hidden` for a first pass over `lens` tokens of each sequence from `starts` on.

        known: int32 [B], tokens of each that are no masks.
        """
        owners = np.repeat(slots, lens)
        firsts = np.cumsum(lens) - lens
        places = np.arange(len(owners)) - np.repeat(firsts, lens)
        # Token i reads the state at position i - 1, from which it was sampled.
        before = np.repeat(starts, lens) + places - 1
        begins = self._begins[owners]
        is_here = (before >= begins) & (before < self._ends[owners])
        is_kept = before == self._kept_at[owners]
        is_kept &= before >= 0
        rows = np.where(is_kept, self._first_kept + owners, self._unknown)
        rows = np.where(is_here, self._offsets[owners] + before - begins, rows)
        rows = np.where(before + 1 >= np.repeat(known, lens), self._masked, rows)
        self._take(self._rows, rows)

    def keep(self, slots: Ints) -> None:
        """Save the last row of sequences whose next tokens come in a later step; the step's rows will be overwritten."""
        if not len(slots):
            return
        last = self._offsets[slots] + self._ends[slots] - self._begins[slots] - 1
        places = self._indices(self._first_kept + slots)
        self._rows[places] = self._rows[self._indices(last)]
        self._kept_at[slots] = self._ends[slots] - 1

    def carry(self, rows: Ints) -> None:
        """Fill `hidden` for a further pass of one token per sequence, from these rows of the previous pass."""
        if self._carries == "residual":
            self._take(self._residual, rows)
            return
        hidden = self._draft.workspace.buffer("hidden")
        most = self._draft.max_logits
        # `hidden` of the model computes at most `max_logits` rows per call.
        for start in range(0, len(rows), most):
            some = self._indices(rows[start : start + most])
            hidden[start : start + len(some)] = self._draft.hidden(some)

    def _take(self, source: torch.Tensor, rows: Ints) -> None:
        """Copy some rows of a buffer into `hidden`."""
        out = self._draft.workspace.view("hidden", len(rows))
        self._draft.kernels.take_rows(source, self._indices(rows), out)

    def _indices(self, rows: Ints) -> torch.Tensor:
        return torch.from_numpy(rows.astype(np.int64)).to(self._rows.device)
