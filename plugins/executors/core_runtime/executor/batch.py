"""The persistent batch: what the worker remembers of its sequences between steps.

Owns: known tokens, block tables and sampling columns of running sequences, by slot; the flat arrays of a step.
Never does: decide what runs (the scheduler) or compute (the model). Called by: the model runner.

The arrays of a step stay where they are, so a step that only continues the one before advances them: a few numpy operations,
whatever the number of sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from core.api.messages import EngineRequest
from core.api.specs import KVGroup
from core.api.step_plan import Int32Array, NewSequence, SequenceKey, Slot, StepPlan
from core_runtime.contracts import BatchView
from core_runtime.executor.block_tables import BlockTables
from core_runtime.executor.given_rows import embeddings_of
from core_runtime.executor.grammars import GrammarMask, Grammars
from core_runtime.executor.held_drafts import HeldDrafts
from core_runtime.executor.logits_processors import LogitsProcessors
from core_runtime.executor.pooled_state import Pooled
from core_runtime.executor.step_arrays import fill_arrays, fill_tokens, step_views
from core_runtime.executor.step_buffers import StepBuffers
from core_runtime.executor.token_table import TokenTable
from core_runtime.executor.tree_step import TreeStep
from core_runtime.sampling import SampleRows, SamplingColumns, SequenceSampling
from core_runtime.sampling.draft_tree import DraftTree

ONE: Final = np.array(1, np.int32)
"""numpy adds it in half the time of a Python number, and faster to a copy than in place where there is one sequence."""


@dataclass(slots=True)
class StepInput:
    """Which sequence each part of a step's flat arrays belongs to.

    slots: int32 [B], as planned.
    query_lens: int32 [B], tokens of each, drafts included.
    num_computed: int32 [B], as planned.
    cu_seqlens: int32 [B + 1], where each sequence's tokens start.
    num_tokens: of all sequences.
    positions: int64 [R], the step's tokens behind which something is sampled; drafts have a row each.
    owners: int64 [S], the slots of the sequences that sample, in order.
    starts: int64 [S + 1], where the rows of each of them start, of R; None: one row each.
    drafts: to verify, by slot.
    trees: those among the drafts; None: there are only chains.
    continues: whether the step before had the same sequences, and each computed one token.
    logits: where the rows' logits lie, [R, V], when all of them fit there; a step that continues this one finds its own there.
    """

    slots: Int32Array
    query_lens: Int32Array
    num_computed: Int32Array
    cu_seqlens: Int32Array
    num_tokens: int
    positions: NDArray[np.int64]
    owners: NDArray[np.int64]
    starts: NDArray[np.int64] | None = None
    drafts: Mapping[Slot, list[int]] = field(default_factory=dict)
    trees: TreeStep | None = None
    continues: bool = False
    logits: Tensor | None = None

    @property
    def uniform(self) -> bool:
        """Whether every sequence computes one token and samples the next."""
        return self.continues or self.num_tokens == len(self.slots) == len(self.owners)


class PersistentBatch:
    """Sequences by slot, and their block tables.

    grammars: what makes the matchers of sequences with a grammar.
    processors: of logits; None: there are none.
    requests: by slot; None where it is free.
    tokens: what is known of each sequence.
    drafts: what may come next in each.
    columns: what each asks of the sampler.
    rows: the rows that the latest step samples.
    scored: slots whose requests ask for logprobs of the prompt.
    pooled: the sequences to pool, which sample nothing.
    masks: of the sequences with a grammar.
    trees: the shapes of drafts that were proposed as a tree.
    undrafted: slots whose sequences have no drafts.
    embedded: float32 [prompt tokens, H], of the sequences whose prompts are embeddings.
    """

    def __init__(
        self,
        buffers: StepBuffers,
        block_size: int,
        groups: Sequence[KVGroup],
        grammars: Grammars | None = None,
        processors: LogitsProcessors | None = None,
    ) -> None:
        self.grammars = grammars
        self.processors = processors
        self.buffers = buffers
        self.block_size = block_size
        self.tables = BlockTables(buffers, block_size, groups)
        num_slots, num_blocks = buffers.block_tables[0].array.shape
        self.requests: list[EngineRequest | None] = [None] * num_slots
        self.tokens = TokenTable(num_slots, num_blocks * block_size)
        self.drafts = HeldDrafts(num_slots, self.tokens)
        self.columns = SamplingColumns(num_slots)
        # a sampled token lies where the next step reads it, if that step only continues this one
        self.rows = SampleRows(self.columns, buffers.token_ids.array, on_device=buffers.sampled)
        self.scored: set[Slot] = set()
        self.pooled: dict[Slot, Pooled] = {}
        self.masks: dict[Slot, GrammarMask] = {}
        self.trees: dict[Slot, DraftTree] = {}
        self.undrafted: set[Slot] = set()
        self.embedded: dict[Slot, Tensor] = {}
        self._latest: StepInput | None = None

    def __getitem__(self, slot: Slot) -> EngineRequest:
        request = self.requests[slot]
        assert request is not None, f"slot {slot} is free"
        return request

    def apply(self, plan: StepPlan) -> list[SequenceKey]:
        """Bring the batch up to date with a plan's deltas; slots to remove that are free already are passed over.

        Returns the sequences that left.
        """
        left: list[SequenceKey] = []
        for slot in plan.removed:
            request = self.requests[slot]
            if request is not None:
                left.append(request.key)
                self.requests[slot] = None
                self.columns.end(slot)
                self.scored.discard(slot)
                self.pooled.pop(slot, None)
                self.masks.pop(slot, None)
                self.drafts.end(slot)
                self.trees.pop(slot, None)
                self.undrafted.discard(slot)
                self.embedded.pop(slot, None)
        if left and self.processors is not None:
            self.processors.end(left)
        for new in plan.new:
            self._add(new)
        for slot, block_ids in plan.new_block_ids.items():
            self.tables.append(slot, block_ids)
        return left

    def step_input(self, plan: StepPlan, drafts: Mapping[Slot, list[int]]) -> StepInput:
        """Fill the buffers with a step's tokens, positions, slots and lengths, in the plan's order.

        plan: with its rows as they are now. drafts: to verify, by slot; they are among the rows' tokens.
        """
        latest = self._latest
        self._latest = None
        if latest is not None and plan.same_batch:
            return self._advance(latest, plan)
        slots = plan.slots
        lens = plan.query_lens
        computed = plan.num_computed
        for slot, token_ids in drafts.items():
            self.tokens.write_drafts(slot, token_ids)
        cu_seqlens = fill_arrays(self.tables, slots, lens, computed)
        fill_tokens(self.buffers, self.tokens.array, slots, lens, computed, cu_seqlens)
        return self._with_rows(plan, cu_seqlens, drafts)

    def write_tokens(self, step: StepInput) -> None:
        """Put the step's tokens into the buffers once more, now that all are known. The step continues none."""
        fill_tokens(self.buffers, self.tokens.array, step.slots, step.query_lens, step.num_computed, step.cu_seqlens)

    def views(self, step: StepInput) -> list[BatchView]:
        """The step as attention sees it, for each KV group."""
        views = step_views(self.buffers, step.query_lens, self.block_size)
        if step.trees is not None:
            return step.trees.views(views, step.slots, self.buffers)
        return views

    def extend(self, step: StepInput, token_ids: Int32Array) -> None:
        """Every sequence of a step has one token more; the next step may continue this one."""
        self.tokens.extend(step.owners, token_ids)
        self._latest = step

    def expect(self, step: StepInput) -> None:
        """The next step may continue this one, whose tokens are told later: until then only the device has them."""
        self._latest = step

    def forget_latest(self) -> None:
        """The next step continues none."""
        self._latest = None

    def _advance(self, step: StepInput, plan: StepPlan) -> StepInput:
        """The same sequences compute the tokens that were sampled for them."""
        count = len(step.slots)
        buffers = self.buffers
        step.continues = True
        step.slots = plan.slots
        step.num_computed = plan.num_computed
        positions = buffers.positions.array[:count]
        seq_lens = buffers.seq_lens.array[:count]
        positions[:] = seq_lens
        seq_lens[:] = seq_lens + ONE
        self.tables.advance(step.slots, positions)
        self.rows.advance()
        return step

    def _with_rows(self, plan: StepPlan, cu_seqlens: Int32Array, drafts: Mapping[Slot, list[int]]) -> StepInput:
        """The step with the rows that it samples: behind the last known token of a sequence, and behind its drafts."""
        slots = plan.slots.astype(np.int64)
        lens = plan.query_lens
        ends = plan.num_computed + lens
        num_drafts: Int32Array | None = None
        if drafts:
            counted = [len(drafts.get(slot, ())) for slot in slots.tolist()]
            num_drafts = np.array(counted, np.int32)
            ends -= num_drafts
        known = self.tokens.num_tokens(slots)
        is_complete = ends >= known
        if self.pooled:
            is_complete &= ~np.isin(slots, list(self.pooled))
        sampled = is_complete.nonzero()[0]
        owners = slots[sampled]
        indices = known[sampled] - self.tokens.num_prompt_tokens[owners]
        stops = cu_seqlens[1:][sampled]
        last = (stops - 1).astype(np.int64)
        step = StepInput(plan.slots, lens, plan.num_computed, cu_seqlens, plan.total_num_tokens, last, owners)
        if num_drafts is None:
            self.rows.bind(owners, indices)
        else:
            step.drafts = drafts
            step.trees = self._trees_of(drafts)
            if step.trees is not None:
                step.trees.place(self.buffers.positions.array, plan.slots, cu_seqlens)
            self._bind_drafts(step, indices, num_drafts[sampled])
        return step

    def _trees_of(self, drafts: Mapping[Slot, list[int]]) -> TreeStep | None:
        """The trees among a step's drafts, of which the last ones may have been left out."""
        if not self.trees:
            return None
        found: dict[Slot, DraftTree] = {}
        for slot, tokens in drafts.items():
            tree = self.trees.get(slot)
            if tree is not None:
                found[slot] = tree.cut(len(tokens))
        return TreeStep(found) if found else None

    def _bind_drafts(self, step: StepInput, indices: NDArray[np.int64], num_drafts: Int32Array) -> None:
        """Give each sequence that samples a row for each of its drafts and one behind them.

        step: with the last position of each of these sequences.
        indices: int64 [S], the output index of the first row of each.
        num_drafts: int32 [S], of each.
        """
        counts = num_drafts + 1
        starts = np.concatenate(([0], np.cumsum(counts)))
        num_rows = starts[-1]
        nth = np.arange(num_rows) - np.repeat(starts[:-1], counts)
        first_positions = step.positions - num_drafts
        step.starts = starts
        step.positions = np.repeat(first_positions, counts) + nth
        if step.trees is not None:
            nth = step.trees.nth_of_rows(step.owners.tolist(), starts, nth)
        owners = np.repeat(step.owners, counts)
        output_indices = np.repeat(indices, counts) + nth
        self.rows.bind(owners, output_indices, nth)

    def _add(self, new: NewSequence) -> None:
        slot = new.slot
        request = new.request
        self.tables.start(slot, new.block_ids)
        self.requests[slot] = request
        self.drafts.start(slot, new.max_length)
        row = self.tokens.start(slot, request.prompt_token_ids, new.output_token_ids)
        state = SequenceSampling(request, row)
        if self.grammars is not None and request.grammar is not None:
            state.mask = self.masks[slot] = self.grammars.mask(request, request.grammar)
        if self.processors is not None:
            self.processors.start(request, state)
            if state.in_order:
                self.undrafted.add(slot)
        self.columns.start(slot, state)
        if request.params.prompt_logprobs is not None:
            self.scored.add(slot)
        if request.pooling is not None:
            self.pooled[slot] = Pooled(request.pooling)
        if request.prompt_embeds:
            self.embedded[slot] = embeddings_of(request)
