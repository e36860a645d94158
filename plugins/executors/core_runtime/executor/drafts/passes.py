"""The passes of a draft after a step of its target.

Owns: their order, and how drafts are drawn. Never does: verify drafts, decide how many are wanted (the scheduler does), or know
what the draft's layers compute. Called by: the model runner, once a step whose plan allows drafts.

The first pass computes every token that became known since the last one, chunks of prompts included. Each further
pass computes the drafts that were just drawn. A draft is drawn as the target will draw its token: with the same noise,
filters, penalties and masks. So a draft with the target's distribution is always accepted, at any temperature.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.api.step_plan import Int32Array, StepPlan, StepResult
from core_runtime.executor.drafts.pending import Drafts
from core_runtime.executor.drafts.progress import DraftProgress, DraftWork
from core_runtime.executor.drafts.rows import DraftRows, note
from core_runtime.executor.drafts.states import HiddenStates
from core_runtime.executor.drafts.tree_guesses import TreeGuesses
from core_runtime.executor.drafts.vocabulary import SpreadLogits
from core_runtime.executor.forward import ForwardPass
from core_runtime.executor.steps.arrays import fill_arrays, fill_tokens, step_views
from core_runtime.executor.steps.batch import PersistentBatch
from core_runtime.executor.steps.block_tables import BlockTables
from core_runtime.sampling import Sampler
from core_runtime.sampling.drafts.draft_tree import DraftTree

Slots = NDArray[np.int64]


class DraftPass:
    """Runs a draft with a KV cache on the sequences of a batch.

    forward: the draft's forward pass, with step buffers of its own.
    batch: the target's batch.
    states: the target's hidden states; None for a draft that takes none.
    mask: token that stands for drafts not known yet, if one pass computes them all; None: one pass per draft.
    spread: spreads logits of a smaller vocabulary; None: the draft knows all tokens.
    tree: shape of the drafts, if there are several guesses per position (`DraftTree.widths`); None: chains.
    """

    def __init__(
        self,
        forward: ForwardPass,
        batch: PersistentBatch,
        sampler: Sampler,
        progress: DraftProgress,
        states: HiddenStates | None = None,
        spread: SpreadLogits | None = None,
        mask: int | None = None,
        tree: DraftTree | None = None,
    ) -> None:
        self.forward = forward
        self.batch = batch
        self.progress = progress
        self.states = states
        self.spread = spread
        self.mask = mask
        self._most_tokens = len(forward.buffers.token_ids.array)
        self._guesses = TreeGuesses(tree, batch) if tree is not None else None
        buffers = forward.buffers
        tables = batch.tables
        self._tables = BlockTables(buffers, batch.block_size, tables.groups, tables)
        self._rows = DraftRows(batch, sampler, forward.model.max_logits, self._run_sampling)

    def apply(self, plan: StepPlan) -> None:
        """Start the plan's new sequences."""
        for new in plan.new:
            self.progress.start(new)
            if self.states is not None:
                self.states.start(new.slot)

    def run(self, plan: StepPlan, result: StepResult, positions: NDArray[np.int64], drafts: Drafts) -> None:
        """Bring the draft up to the step's sequences, and add to the drafts of the next step.

        plan: settled, with its rows as they were computed. positions: see `HeadsPass.run`; unused here.
        """
        work = self.progress.work(plan, result.errors)
        if work is None:
            return
        if self.mask is not None:
            self._add_masks(work, self.mask)
        with torch.inference_mode():
            if self.states is not None:
                self.states.read(plan)
                self.states.fill(work.slots, work.all_lens, work.starts, work.known)
            self._compute(work.slots, work.all_lens, work.starts)
            self.progress.computed(work)
            if self.states is not None:
                self.states.keep(work.slots[work.counts == 0])
            drafting = (work.counts > 0).nonzero()[0]
            if not len(drafting):
                return
            self._draft(work, drafting, drafts)
        if self._guesses is not None:
            # A tree draws whole levels, so it can have more drafts than the budget allows.
            for slot, tokens in drafts.items():
                budget = plan.draft_budget[slot]
                drafts[slot] = tokens[:budget]

    def _add_masks(self, work: DraftWork, mask: int) -> None:
        """Write a mask token after the known tokens for every draft but the first, as far as the pass has room."""
        wanted = np.maximum(work.counts - 1, 0)
        # Known tokens have priority: sequences without room for all masks get fewer drafts in this step.
        room = self._most_tokens - int(work.lens.sum())
        before = np.cumsum(wanted) - wanted
        work.num_masks = np.clip(room - before, 0, wanted).astype(np.int32)
        work.counts = np.minimum(work.counts, work.num_masks + 1)
        for place in range(int(work.num_masks.max())):
            masked = work.num_masks > place
            slots = work.slots[masked]
            self._rows.write(slots, work.known[masked], place, np.full(len(slots), mask))

    def _draft(self, work: DraftWork, drafting: NDArray[np.int64], drafts: Drafts) -> None:
        """Draw the drafts of some of the sequences, the first after the last known token of each."""
        slots = work.slots[drafting]
        counts = work.counts[drafting]
        if self._guesses is not None:
            counts = self._guesses.depths(slots, counts)
        known = work.known[drafting]
        ends = np.cumsum(work.all_lens)
        last_known = ends - work.num_masks - 1
        positions: Slots = last_known[drafting].astype(np.int64)
        for place in range(int(counts.max())):
            token_ids = self._draw(positions, slots, known, place)
            note(drafts, slots, token_ids)
            if self._guesses is not None:
                self._guesses.add(drafts, slots.tolist(), token_ids.tolist(), self._rows.others)
            was_drawn = token_ids >= 0
            goes_on = was_drawn & (counts > place + 1)
            slots = slots[goes_on]
            if not len(slots):
                return
            counts = counts[goes_on]
            known = known[goes_on]
            positions = positions[goes_on]
            token_ids = token_ids[goes_on]
            self._rows.write(slots, known, place, token_ids)
            if self.mask is not None:
                positions = positions + 1  # the masks after the last known token were computed in the same pass
                continue
            positions = self._compute_drafts(slots, known, place, token_ids, positions)

    def _compute_drafts(
        self, slots: Slots, known: Int32Array, place: int, token_ids: NDArray[np.int64], positions: Slots
    ) -> Slots:
        """Compute the draft at `place` of each sequence. Returns the row of each in the pass, int64 [B].

        positions: int64 [B], rows of the preceding tokens in the last pass.
        """
        count = len(slots)
        if self.states is not None:
            self.states.carry(positions)
        self._compute(slots, np.ones(count, np.int32), known + np.int32(place))
        self.progress.drafted(slots, place, token_ids)
        return np.arange(count, dtype=np.int64)

    def _compute(self, slots: Slots, lens: Int32Array, starts: Int32Array) -> None:
        """Compute the residual stream of `lens` tokens of each sequence, from `starts` on."""
        buffers = self.forward.buffers
        rows = slots.astype(np.int32)
        cu_seqlens = fill_arrays(self._tables, rows, lens, starts)
        fill_tokens(buffers, self.batch.tokens.array, rows, lens, starts, cu_seqlens)
        views = step_views(buffers, lens, self.batch.block_size)
        self.forward.run(views)

    def _draw(self, positions: NDArray[np.int64], slots: Slots, known: Int32Array, place: int) -> NDArray[np.int64]:
        """Draw one draft of each sequence; see `DraftRows.draw`. positions: rows in the latest pass that the drafts
        follow.
        """

        def logits(start: int, end: int) -> Tensor:
            rows = positions[start:end]
            count = len(rows)
            self.forward.buffers.logit_rows.array[:count] = rows
            found = self.forward.logits(count)
            return found if self.spread is None else self.spread(found)

        num_others = self._guesses.num_others(place) if self._guesses is not None else 0
        return self._rows.draw(logits, slots, known, place, num_others)

    def _run_sampling(self, kind: str, count: int, call: Callable[[], None]) -> None:
        self.forward.recorder.run(kind, count, 0, call)
