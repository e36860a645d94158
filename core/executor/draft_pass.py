"""The passes of a draft behind a step of its target.

Owns: their order, and how drafts are drawn. Never does: verify drafts, decide how many are wanted (the scheduler does), or know
what the draft's layers compute. Called by: the model runner, once a step whose plan allows drafts.

The first pass computes every token that the target has come to know since the last one, chunks of prompts too; each further
pass computes the drafts that were just drawn. A draft is drawn as the target will draw its token: with the same noise,
filters, penalties and masks. So a draft like its target is always right, at any temperature.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.api.step_plan import Int32Array, Slot, StepPlan, StepResult
from core.executor.batch import PersistentBatch
from core.executor.block_tables import BlockTables
from core.executor.draft_progress import DraftProgress, DraftWork
from core.executor.forward import ForwardPass
from core.executor.step_arrays import fill_arrays, fill_tokens, step_views
from core.executor.tree_guesses import TreeGuesses
from core.sampling import Sampler, SampleRows
from core.sampling.draft_tree import DraftTree

Slots = NDArray[np.int64]


class DraftPass:
    """Runs a draft with a KV cache on the sequences of a batch.

    forward: of the draft, with step buffers of its own.
    batch: of the target.
    tree: the shape of the drafts, where there are several guesses for a position (`DraftTree.widths`); None: chains.
    """

    def __init__(
        self,
        forward: ForwardPass,
        batch: PersistentBatch,
        sampler: Sampler,
        progress: DraftProgress,
        tree: DraftTree | None = None,
    ) -> None:
        self.forward = forward
        self.batch = batch
        self.sampler = sampler
        self.progress = progress
        self._guesses = TreeGuesses(tree, batch) if tree is not None else None
        self._others: list[NDArray[np.int64]] = []
        self._max_logits = forward.model.max_logits
        buffers = forward.buffers
        tables = batch.tables
        self._tables = BlockTables(buffers, batch.block_size, tables.groups, tables)
        drawn = np.zeros(len(batch.requests), np.int64)
        self._rows = SampleRows(batch.columns, drawn, sampler.draft_purpose)

    def apply(self, plan: StepPlan) -> None:
        """Sequences enter the batch."""
        for new in plan.new:
            self.progress.start(new)

    def run(self, plan: StepPlan, result: StepResult) -> None:
        """Keep up with the step's sequences, and add drafts to its result."""
        work = self.progress.work(plan, result.errors)
        if work is None:
            return
        with torch.inference_mode():
            self._compute(work.slots, work.lens, work.starts)
            self.progress.computed(work)
            drafting = (work.counts > 0).nonzero()[0]
            if len(drafting):
                self._draft(work, drafting, result.drafts)
        if self._guesses is not None:
            for slot, tokens in result.drafts.items():
                result.drafts[slot] = tokens[: plan.draft_budget[slot]]

    def _draft(self, work: DraftWork, drafting: NDArray[np.int64], drafts: dict[Slot, list[int]]) -> None:
        """Draw the drafts of some of the sequences, one pass after the other."""
        last_tokens = np.cumsum(work.lens) - 1
        slots = work.slots[drafting]
        counts = work.counts[drafting]
        if self._guesses is not None:
            counts = self._guesses.depths(slots, counts)
        known = work.known[drafting]
        positions = last_tokens[drafting]
        table = self.batch.tokens
        for place in range(int(counts.max())):
            indices = known - table.num_prompt_tokens[slots] + np.int32(place)
            token_ids = self._draw(positions, slots, indices, place)
            for slot, token in zip(slots.tolist(), token_ids.tolist(), strict=True):
                if token >= 0:
                    drafts.setdefault(slot, []).append(token)
            if self._guesses is not None:
                self._guesses.add(drafts, slots.tolist(), token_ids.tolist(), self._others)
            goes_on = (token_ids >= 0) & (counts > place + 1)
            slots = slots[goes_on]
            if not len(slots):
                return
            counts = counts[goes_on]
            known = known[goes_on]
            token_ids = token_ids[goes_on]
            table.array[slots, known + place] = token_ids
            self._compute(slots, np.ones(len(slots), np.int32), known + np.int32(place))
            self.progress.drafted(slots, place, token_ids)
            positions = np.arange(len(slots))

    def _compute(self, slots: Slots, lens: Int32Array, starts: Int32Array) -> None:
        """The residual stream of `lens` tokens of each sequence, from `starts` on."""
        buffers = self.forward.buffers
        rows = slots.astype(np.int32)
        cu_seqlens = fill_arrays(self._tables, rows, lens, starts)
        fill_tokens(buffers, self.batch.tokens.array, rows, lens, starts, cu_seqlens)
        views = step_views(buffers, lens, self.batch.block_size)
        self.forward.run(views)

    def _draw(self, positions: NDArray[np.int64], slots: Slots, indices: Int32Array, place: int) -> NDArray[np.int64]:
        """Draft number `place` of each sequence, int64 [B]; -1 where there is none.

        positions: of the tokens of the pass that the drafts follow.
        indices: the output index of each.
        """
        rows = self._rows
        rows.bind(slots, indices, np.full(len(slots), place))
        rows.reported = []
        num_others = self._guesses.num_others(place) if self._guesses is not None else 0
        others: list[list[NDArray[np.int64]]] = []
        for start in range(0, len(slots), self._max_logits):
            logits = self._logits(positions[start : start + self._max_logits])
            self.sampler.sample(logits, rows, start, self._run_sampling)
            if num_others:
                others.append(self.sampler.runners_up(logits, rows, start, num_others))
        self._others = [np.concatenate(parts) for parts in zip(*others, strict=True)]
        return rows.tokens.copy()

    def _logits(self, positions: NDArray[np.int64]) -> Tensor:
        count = len(positions)
        self.forward.buffers.logit_rows.array[:count] = positions
        return self.forward.logits(count)

    def _run_sampling(self, kind: str, count: int, call: Callable[[], None]) -> None:
        self.forward.recorder.run(kind, count, 0, call)
