"""Sampling of draft tokens from a draft's logits.

Owns: the rows that are sampled for drafts, and the drafts after the known tokens. Never does: compute logits, or
verify.
Called by: the passes of drafts and of draft heads.

A draft is drawn as the target will draw its token: with the same noise, filters, penalties and masks.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from core.api.step_plan import Int32Array, Slot
from core_runtime.executor.steps.batch import PersistentBatch
from core_runtime.sampling import Sampler, SampleRows
from core_runtime.sampling.sampler import RunCall

Slots = NDArray[np.int64]
Logits = Callable[[int, int], Tensor]
"""Function from a range of sequences (start, end) to their logits, float32 [n, V], valid until the next call."""


class DraftRows:
    """Draws drafts for sequences of a batch, with its sampling columns.

    most_rows: maximum rows of logits in one call.
    others: int64 [B] each, further guesses of the latest draw, the likeliest first; -1: none.
    """

    def __init__(self, batch: PersistentBatch, sampler: Sampler, most_rows: int, run: RunCall) -> None:
        self._table = batch.tokens
        self._sampler = sampler
        self._most_rows = most_rows
        self._run = run
        drawn = np.zeros(len(batch.requests), np.int64)
        self._rows = SampleRows(batch.columns, drawn, sampler.draft_purpose)
        self.others: list[NDArray[np.int64]] = []

    def draw(
        self, logits: Logits, slots: Slots, known: Int32Array, place: int, num_others: int = 0
    ) -> NDArray[np.int64]:
        """Draw draft number `place` of each sequence, counted from 0: int64 [B], -1 for none.

        slots: int64 [B], slots of the batch.
        known: int32 [B], tokens of each without drafts.
        num_others: number of further guesses for the same position.
        """
        rows = self._rows
        indices = known - self._table.num_prompt_tokens[slots] + place
        rows.bind(slots, indices, np.full(len(slots), place))
        rows.reported = rows.wanted = []  # logprobs are reported for verified tokens only
        others: list[list[NDArray[np.int64]]] = []
        for start in range(0, len(slots), self._most_rows):
            end = min(start + self._most_rows, len(slots))
            found = logits(start, end)
            self._sampler.sample(found, rows, start, self._run)
            if num_others:
                others.append(self._sampler.runners_up(found, rows, start, num_others))
        self.others = [np.concatenate(parts) for parts in zip(*others, strict=True)]
        return rows.tokens.copy()

    def write(self, slots: Slots, known: Int32Array, place: int, token_ids: NDArray[np.int64]) -> None:
        """Write drafts after the known tokens, where the next ones are drawn and computed from."""
        self._table.array[slots, known + place] = token_ids


def note(drafts: dict[Slot, list[int]], slots: Slots, token_ids: NDArray[np.int64]) -> None:
    """Append a draft to the list of each sequence; negative tokens are skipped."""
    for slot, token in zip(slots.tolist(), token_ids.tolist(), strict=True):
        if token >= 0:
            drafts.setdefault(slot, []).append(token)
