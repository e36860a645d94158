"""The persistent batch: what the worker remembers of its sequences between steps.

Owns: known tokens, block tables and sampling columns of running sequences, by slot; the flat arrays of a step.
Never does: decide what runs (the scheduler) or compute (the model). Called by: the model runner.

The arrays of a step stay where they are, so a step that only continues the one before advances them: a few numpy operations,
whatever the number of sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from core.api.messages import EngineRequest
from core.api.specs import KVGroup
from core.api.step_plan import Int32Array, NewSequence, SequenceKey, Slot, StepPlan
from core.executor.block_tables import BlockTables
from core.executor.step_buffers import StepBuffers
from core.executor.token_table import TokenTable
from core.plugin.contracts import BatchView
from core.sampling import SampleRows, SamplingColumns, SequenceSampling

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
    drafts: dict[Slot, list[int]] = field(default_factory=dict)
    continues: bool = False
    logits: Tensor | None = None

    @property
    def uniform(self) -> bool:
        """Whether every sequence computes one token and samples the next."""
        return self.continues or self.num_tokens == len(self.slots) == len(self.owners)


class PersistentBatch:
    """Sequences by slot, and their block tables.

    requests: by slot; None where it is free.
    tokens: what is known of each sequence.
    columns: what each asks of the sampler.
    rows: the rows that the latest step samples.
    scored: slots whose requests ask for logprobs of the prompt.
    """

    def __init__(self, buffers: StepBuffers, block_size: int, groups: Sequence[KVGroup]) -> None:
        self.buffers = buffers
        self.block_size = block_size
        self.tables = BlockTables(buffers, block_size, groups)
        num_slots, num_blocks = buffers.block_tables[0].array.shape
        self.requests: list[EngineRequest | None] = [None] * num_slots
        self.tokens = TokenTable(num_slots, num_blocks * block_size)
        self.columns = SamplingColumns(num_slots)
        # a sampled token lies where the next step reads it, if that step only continues this one
        self.rows = SampleRows(self.columns, buffers.token_ids.array)
        self.scored: set[Slot] = set()
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
        for new in plan.new:
            self._add(new)
        for slot, block_ids in plan.new_block_ids.items():
            self.tables.append(slot, block_ids)
        return left

    def step_input(self, plan: StepPlan) -> StepInput:
        """Fill the buffers with a step's tokens, positions, slots and lengths, in the plan's order."""
        latest, self._latest = self._latest, None
        if latest is not None and plan.same_batch:
            return self._advance(latest, plan)
        slots, lens, computed = plan.slots, plan.query_lens, plan.num_computed
        buffers = self.buffers
        num_seqs, num_tokens = len(slots), plan.total_num_tokens
        cu_seqlens = buffers.cu_seqlens_q.array[: num_seqs + 1]
        np.cumsum(lens, out=cu_seqlens[1:])
        for slot, drafts in plan.drafts.items():
            self.tokens.write_drafts(slot, drafts)
        self._fill_tokens(plan, cu_seqlens)
        positions = buffers.positions.array[:num_tokens]
        if num_tokens == num_seqs:
            owner = np.arange(num_seqs)
            positions[:] = computed
        else:
            owner = np.repeat(np.arange(num_seqs), lens)
            offsets = np.repeat(computed - cu_seqlens[:-1], lens)
            np.add(np.arange(num_tokens), offsets, out=positions)
        seq_lens = buffers.seq_lens.array[:num_seqs]
        np.add(computed, lens, out=seq_lens)
        width = -(-int(seq_lens.max()) // self.block_size)
        self.tables.fill(slots, owner, positions, width)
        return self._with_rows(plan, cu_seqlens)

    def views(self, step: StepInput) -> list[BatchView]:
        """What attention sees of a step, for each KV group."""
        buffers = self.buffers
        num_seqs, num_tokens = len(step.slots), step.num_tokens
        seq_lens_list = buffers.seq_lens.array[:num_seqs].tolist()
        tables = [table.upload(num_seqs) for table in buffers.block_tables]
        mappings = [mapping.upload(num_tokens) for mapping in buffers.slot_mappings]
        view = BatchView(
            num_tokens=num_tokens,
            num_seqs=num_seqs,
            block_size=self.block_size,
            max_query_len=int(step.query_lens.max()),
            max_seq_len=max(seq_lens_list),
            query_lens=step.query_lens.tolist(),
            seq_lens_list=seq_lens_list,
            cu_seqlens_q=buffers.cu_seqlens_q.upload(num_seqs + 1),
            seq_lens=buffers.seq_lens.upload(num_seqs),
            block_table=tables[0],
            slot_mapping=mappings[0],
            positions=buffers.positions.upload(num_tokens),
        )
        others = zip(tables[1:], mappings[1:], strict=True)
        return [view, *(replace(view, block_table=table, slot_mapping=mapping) for table, mapping in others)]

    def extend(self, step: StepInput, token_ids: Int32Array) -> None:
        """Every sequence of a step has one token more; the next step may continue this one."""
        self.tokens.extend(step.owners, token_ids)
        self._latest = step

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

    def _fill_tokens(self, plan: StepPlan, cu_seqlens: Int32Array) -> None:
        """Write the step's tokens. Most sequences compute their last known one only."""
        slots, lens, computed = plan.slots, plan.query_lens, plan.num_computed
        token_ids, known = self.buffers.token_ids.array, self.tokens.array
        token_ids[cu_seqlens[:-1]] = known[slots, computed]
        for row in (lens != 1).nonzero()[0].tolist():
            start, stop = cu_seqlens[row], cu_seqlens[row + 1]
            begin = computed[row]
            token_ids[start:stop] = known[slots[row], begin : begin + lens[row]]

    def _with_rows(self, plan: StepPlan, cu_seqlens: Int32Array) -> StepInput:
        """The step with the rows that it samples: behind the last known token of a sequence, and behind its drafts."""
        slots, lens = plan.slots.astype(np.int64), plan.query_lens
        num_drafts: Int32Array | None = None
        ends = plan.num_computed + lens
        if plan.drafts:
            num_drafts = np.array([len(plan.drafts.get(slot, ())) for slot in slots.tolist()], np.int32)
            ends -= num_drafts
        known = self.tokens.num_tokens(slots)
        sampled = (ends >= known).nonzero()[0]
        owners = slots[sampled]
        indices = known[sampled] - self.tokens.num_prompt_tokens[owners]
        last = (cu_seqlens[1:][sampled] - 1).astype(np.int64)
        step = StepInput(plan.slots, lens, plan.num_computed, cu_seqlens, plan.total_num_tokens, last, owners)
        if num_drafts is None:
            self.rows.bind(owners, indices)
            return step
        counts = num_drafts[sampled] + 1
        starts = np.concatenate(([0], np.cumsum(counts)))
        nth = np.arange(starts[-1]) - np.repeat(starts[:-1], counts)
        step.drafts = plan.drafts
        step.starts = starts
        step.positions = np.repeat(last - num_drafts[sampled], counts) + nth
        self.rows.bind(np.repeat(owners, counts), np.repeat(indices, counts) + nth, nth)
        return step

    def _add(self, new: NewSequence) -> None:
        slot, request = new.slot, new.request
        self.tables.start(slot, new.block_ids)
        self.requests[slot] = request
        row = self.tokens.start(slot, request.prompt_token_ids, new.output_token_ids)
        self.columns.start(slot, SequenceSampling(request, row))
        if request.params.prompt_logprobs is not None:
            self.scored.add(slot)
