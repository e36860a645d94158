"""Draft trees of a draft model that runs token by token: several guesses for each position.

Owns: which sequences have such guesses, how deep the draft goes for them, and where they lie among its drafts.
Never does: compute, draw or verify. Called by: the draft pass.

The draft continues after the first guess for a position only. The others are the runners-up of the same draw, and cost
nothing but their verification.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from core.api.step_plan import Int32Array, Slot
from core_runtime.executor.steps.batch import PersistentBatch
from core_runtime.sampling.drafts.draft_tree import DraftTree

Counts = NDArray[np.int64]


class TreeGuesses:
    """The guesses of a tree with regular `widths`. The draft pass owns it."""

    def __init__(self, tree: DraftTree, batch: PersistentBatch) -> None:
        widths = tree.widths
        assert widths is not None, "the configuration looked at the shape"
        self._tree = tree
        self._batch = batch
        self._widths = widths
        self._begins = np.cumsum((0, *widths[:-1]))

    def depths(self, slots: Counts, counts: Int32Array) -> Int32Array:
        """Return the number of positions to draft for sequences with budgets `counts`, and set which of them have a tree."""
        columns = self._batch.columns
        # Penalties and masks depend on the drafts before a row, which differ between the branches of a tree.
        is_chain = columns.adjusts[slots] | columns.masked[slots]
        for slot, chain in zip(slots.tolist(), is_chain.tolist(), strict=True):
            if chain:
                self._batch.trees.pop(slot, None)
            else:
                self._batch.trees[slot] = self._tree
        reached = np.searchsorted(self._begins, counts)
        along_chain = np.minimum(counts, len(self._widths))
        depths: Int32Array = np.where(is_chain, along_chain, reached).astype(np.int32)
        return depths

    def num_others(self, place: int) -> int:
        """Return the number of guesses for a position in addition to the first."""
        return self._widths[place] - 1

    def add(
        self, drafts: dict[Slot, list[int]], slots: Sequence[int], first: Sequence[int], others: Sequence[Counts]
    ) -> None:
        """Append further guesses to the drafts, after the first one. others: [guesses][sequences]."""
        for row, (slot, token) in enumerate(zip(slots, first, strict=True)):
            if token < 0 or slot not in self._batch.trees:
                continue
            for guesses in others:
                guess = int(guesses[row])
                # Duplicates fill up a level, because the tree's shape is fixed.
                drafts[slot].append(guess if guess >= 0 else token)
