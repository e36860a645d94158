"""The persistent batch: the worker's state of its sequences between steps.

Owns: known tokens, block tables and sampling columns of running sequences, by slot; the flat arrays of a step.
Never does: decide what runs (the scheduler) or compute (the model). Called by: the model runner.

The arrays of a step stay in place. A step with the same sequences as the previous one only advances them: a few numpy
operations, independent of the number of sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.api.messages import EngineRequest
from core.api.specs import KVGroup
from core.api.step_plan import Int32Array, NewSequence, SequenceKey, Slot, StepPlan
from core_runtime.contracts import BatchView
from core_runtime.executor.answers.pooled_state import Pooled
from core_runtime.executor.constraints.grammars import GrammarMask, Grammars
from core_runtime.executor.drafts.pending import PendingDrafts
from core_runtime.executor.drafts.tree_step import TreeStep
from core_runtime.executor.processors.logits_processors import LogitsProcessors
from core_runtime.executor.steps.adapter_rows import AdapterRows
from core_runtime.executor.steps.arrays import fill_arrays, fill_tokens, step_views
from core_runtime.executor.steps.block_tables import BlockTables
from core_runtime.executor.steps.buffers import StepBuffers
from core_runtime.executor.steps.input_embeddings import PromptRows, encoded_of, gives_rows, rows_of
from core_runtime.executor.steps.rotary_rows import RotaryRows
from core_runtime.executor.steps.spans import Spans, sees_to
from core_runtime.executor.steps.token_table import TokenTable
from core_runtime.sampling import SampleRows, SamplingColumns, SequenceSampling
from core_runtime.sampling.drafts.draft_tree import DraftTree

ONE: Final = np.array(1, np.int32)
"""A numpy scalar: adding it takes half the time of adding a Python int. With one sequence, adding into a copy is faster
than adding in place.
"""


@dataclass(slots=True)
class StepInput:
    """The input of a step: which sequence each part of the flat arrays belongs to.

    slots: int32 [B], as planned.
    query_lens: int32 [B], tokens of each sequence, drafts included.
    num_computed: int32 [B], as planned.
    cu_seqlens: int32 [B + 1], start of each sequence's tokens.
    num_tokens: tokens of all sequences.
    positions: int64 [R], the step's tokens after which a token is sampled; each draft has a row.
    owners: int64 [S], slots of the sequences that sample, in order.
    starts: int64 [S + 1], start of each sampling sequence's rows among R; None: one row each.
    drafts: drafts to verify, by slot.
    trees: the drafts that form trees; None: all are chains.
    continues: whether the previous step had the same sequences, and each computed one token.
    adapters: rows of the adapters' tables that tokens of the step use; empty: the base model computes it.
    logits: buffer of the rows' logits, [R, V], when all of them fit; a step that continues this one finds its own
        there.
    supports: tokens that could have been drawn for each kept token, int64, by slot, if they are told.
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
    adapters: tuple[int, ...] = ()
    logits: Tensor | None = None
    supports: dict[Slot, list[NDArray[np.int64]]] = field(default_factory=dict)

    @property
    def uniform(self) -> bool:
        """Whether every sequence computes one token and samples the next."""
        return self.continues or self.num_tokens == len(self.slots) == len(self.owners)


class PersistentBatch:
    """The running sequences by slot, and their block tables. The model runner owns it.

    grammars: makes the matchers of sequences with a grammar.
    processors: logits processors; None: there are none.
    adapters: adapters of the sequences; None: the engine has none.
    encoder_shape: (rows, size) of the encoder's output for a sequence; None: the model has no encoder.
    requests: requests by slot; None for a free slot.
    tokens: known tokens of each sequence.
    drafts: pending drafts of each sequence.
    columns: sampling parameters of each sequence.
    rows: rows that the latest step samples.
    scored: slots whose requests want prompt logprobs.
    pooled: sequences to pool; they sample nothing.
    masks: token masks of the sequences with a grammar.
    trees: shapes of drafts that were proposed as trees.
    undrafted: slots whose sequences have no drafts.
    embedded: rows of sequences whose prompts have given embeddings.
    encoded: rows of an encoder to which the tokens of each sequence attend; empty for models without one.
    spans: see `EngineRequest.spans`, by slot.
    rotary: rows of the rotary tables, for a model in whose prompts these differ from positions; else None.
    """

    def __init__(
        self,
        buffers: StepBuffers,
        block_size: int,
        groups: Sequence[KVGroup],
        grammars: Grammars | None = None,
        processors: LogitsProcessors | None = None,
        placed: Mapping[str, int] | None = None,
        *,
        moves_states: bool = False,
        encoder_shape: tuple[int, int] | None = None,
    ) -> None:
        self.grammars = grammars
        self.processors = processors
        self.buffers = buffers
        self.block_size = block_size
        self.tables = BlockTables(buffers, block_size, groups, moves_states=moves_states)
        num_slots, num_blocks = buffers.block_tables[0].tensor.shape
        self.requests: list[EngineRequest | None] = [None] * num_slots
        self.adapters = None if placed is None else AdapterRows(num_slots, placed)
        self.tokens = TokenTable(num_slots, num_blocks * block_size)
        self.drafts = PendingDrafts(num_slots, self.tokens)
        self.columns = SamplingColumns(num_slots)
        # Sampled tokens are written where the next step reads its input, so a step that continues this one copies none.
        self.rows = SampleRows(self.columns, buffers.token_ids.array, on_device=buffers.sampled)
        self.scored: set[Slot] = set()
        self.pooled: dict[Slot, Pooled] = {}
        self.masks: dict[Slot, GrammarMask] = {}
        self.trees: dict[Slot, DraftTree] = {}
        self.undrafted: set[Slot] = set()
        self.embedded: dict[Slot, PromptRows] = {}
        self.encoded: dict[Slot, Tensor] = {}
        self._encoder_shape = encoder_shape
        self.spans: dict[Slot, Spans] = {}
        self.rotary = None if buffers.rotary is None else RotaryRows(num_slots, buffers.rotary)
        self._latest: StepInput | None = None

    def __getitem__(self, slot: Slot) -> EngineRequest:
        request = self.requests[slot]
        assert request is not None, f"slot {slot} is free"
        return request

    def apply(self, plan: StepPlan) -> list[SequenceKey]:
        """Apply a plan's changes to the batch and return the keys of the sequences that left.

        Slots in `plan.removed` that are already free are skipped.
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
                self.encoded.pop(slot, None)
                self.spans.pop(slot, None)
                if self.adapters is not None:
                    self.adapters.end(slot)
                if self.rotary is not None:
                    self.rotary.end(slot)
        if left and self.processors is not None:
            self.processors.end(left)
        # Removals come first: the scheduler may give a slot that was just freed to a new sequence of the same plan.
        for new in plan.new:
            self._add(new)
        for slot, block_ids in plan.new_block_ids.items():
            self.tables.append(slot, block_ids)
        self.tables.move_states(plan.moved_states)
        return left

    def step_input(self, plan: StepPlan, drafts: Mapping[Slot, list[int]]) -> StepInput:
        """Fill the buffers with a step's tokens, positions, slots and lengths, in the plan's order.

        plan: settled, with its rows as they are now. drafts: drafts to verify, by slot; they are counted in the rows'
            tokens.
        """
        latest = self._latest
        # Cleared until `extend` or `expect`: if this step fails, its buffers must not be advanced.
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
        step = self._with_rows(plan, cu_seqlens, drafts)
        if self.adapters is not None:
            step.adapters = self.adapters.fill(self.buffers, slots, lens)
        if self.rotary is not None:
            self.rotary.fill(self.buffers.positions.array, slots, lens)
        return step

    def write_tokens(self, step: StepInput) -> None:
        """Write the step's tokens into the buffers again, once all of them are known. Only for a step that continues
        none.
        """
        fill_tokens(self.buffers, self.tokens.array, step.slots, step.query_lens, step.num_computed, step.cu_seqlens)

    def views(self, step: StepInput) -> list[BatchView]:
        """Return the step as attention sees it, one view per KV group."""
        views = step_views(self.buffers, step.query_lens, self.block_size)
        if self.spans and not step.continues:
            column = sees_to(self.spans, self.buffers.positions.array, step.slots, step.cu_seqlens)
            if column is not None:
                on_device = torch.from_numpy(column).to(views[0].positions.device)
                views = [replace(view, sees_to=on_device) for view in views]
        if step.trees is not None:
            # Each draft gets a copy of its sequence's table, which must be on the device by then.
            self.buffers.send()
            return step.trees.views(views, step.slots, self.buffers)
        return views

    def extend(self, step: StepInput, token_ids: Int32Array) -> None:
        """Append one token to every sampling sequence of a step; the next step may continue this one."""
        self.tokens.extend(step.owners, token_ids)
        self._latest = step

    def expect(self, step: StepInput) -> None:
        """Let the next step continue this one, whose tokens the host learns later; until then only the device has them."""
        self._latest = step

    def forget_latest(self) -> None:
        """Prevent the next step from continuing an earlier one."""
        self._latest = None

    def _advance(self, step: StepInput, plan: StepPlan) -> StepInput:
        """Advance a step to the tokens that were just sampled for its sequences."""
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
        if self.adapters is not None:
            step.adapters = self.adapters.fill(buffers, step.slots, plan.query_lens)
        if self.rotary is not None:
            self.rotary.advance(positions, step.slots)
        self.rows.advance()
        return step

    def _with_rows(self, plan: StepPlan, cu_seqlens: Int32Array, drafts: Mapping[Slot, list[int]]) -> StepInput:
        """Return the step with the rows that it samples: after the last known token of each sequence, and after each
        draft.
        """
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
            # Pooled sequences end with their prompt.
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
        """Return the trees among a step's drafts, cut to the drafts that are left."""
        if not self.trees:
            return None
        found: dict[Slot, DraftTree] = {}
        for slot, tokens in drafts.items():
            tree = self.trees.get(slot)
            if tree is not None:
                found[slot] = tree.cut(len(tokens))
        return TreeStep(found) if found else None

    def _bind_drafts(self, step: StepInput, indices: NDArray[np.int64], num_drafts: Int32Array) -> None:
        """Give each sampling sequence a row for each of its drafts and one after them.

        step: holds the last position of each of these sequences.
        indices: int64 [S], output index of each sequence's first row.
        num_drafts: int32 [S], drafts of each sequence.
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
        # First, because it may raise: the slot then stays free.
        if self.adapters is not None:
            self.adapters.start(slot, request)
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
                # The processor must see each position once, but a rejected draft's position comes again.
                self.undrafted.add(slot)
        self.columns.start(slot, state)
        if request.params.prompt_logprobs is not None:
            self.scored.add(slot)
        if request.pooling is not None:
            self.pooled[slot] = pooled = Pooled(request.pooling)
            if self.adapters is not None:
                pooled.adapter_row = self.adapters.row(slot)
        if self._encoder_shape is not None:
            self.encoded[slot] = encoded_of(request, self._encoder_shape)
        elif gives_rows(request):
            self.embedded[slot] = rows_of(request)
        if request.spans:
            self.spans[slot] = request.spans
        if self.rotary is not None:
            self.rotary.start(slot, request.media)
