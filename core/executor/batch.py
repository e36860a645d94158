"""The persistent batch: what the worker remembers of its sequences between steps.

Owns: known tokens, block tables and sampling states of running sequences, by slot; the flat arrays of a step.
Never does: decide what runs (the scheduler) or compute (the model). Called by: the model runner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from core.api.messages import EngineRequest
from core.api.specs import KVGroup
from core.api.step_plan import Int32Array, NewSequence, SequenceKey, Slot, StepPlan
from core.executor.block_tables import BlockTables
from core.executor.step_buffers import StepBuffers
from core.plugin.contracts import BatchView
from core.sampling.sampler import SampleRow
from core.sampling.state import SequenceSampling


@dataclass(slots=True)
class RunningSequence:
    """One sequence. output_token_ids is shared with the sampling state. row: how the sampler sees it without drafts."""

    request: EngineRequest
    output_token_ids: list[int]
    row: SampleRow

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.request.prompt_token_ids)

    def tokens(self, start: int, stop: int) -> list[int]:
        """Known tokens in [start, stop)."""
        prompt = self.request.prompt_token_ids
        split = len(prompt)
        if start >= split:
            return self.output_token_ids[start - split : stop - split]
        return prompt[start:stop] + self.output_token_ids[: max(0, stop - split)]


@dataclass(slots=True)
class StepInput:
    """Which sequence each part of a step's flat arrays belongs to, and the arrays themselves.

    slots, num_computed: int32 [B], as planned. cu_seqlens: int32 [B + 1], where each sequence's tokens start.
    sampled_rows: int64 [R], rows of the sequences whose last known token is computed. views: one for each KV group.
    """

    slots: Int32Array
    num_computed: Int32Array
    cu_seqlens: Int32Array
    sampled_rows: NDArray[np.int64]
    views: list[BatchView]
    drafts: dict[Slot, list[int]] = field(default_factory=dict)

    @property
    def view(self) -> BatchView:
        """What all groups share, and the tables of the first one."""
        return self.views[0]


class PersistentBatch:
    """Sequences by slot, and their block tables.

    num_tokens: int32 by slot, known tokens. last_token: int64 by slot, the last one of them.
    scored: slots whose requests ask for logprobs of the prompt.
    """

    def __init__(self, buffers: StepBuffers, block_size: int, groups: Sequence[KVGroup]) -> None:
        self.buffers = buffers
        self.block_size = block_size
        self.tables = BlockTables(buffers, block_size, groups)
        max_num_seqs = buffers.seq_lens.array.shape[0]
        self.sequences: list[RunningSequence | None] = [None] * max_num_seqs
        self.num_tokens = np.zeros(max_num_seqs, np.int32)
        self.last_token = np.zeros(max_num_seqs, np.int64)
        self.scored: set[Slot] = set()

    def __getitem__(self, slot: Slot) -> RunningSequence:
        sequence = self.sequences[slot]
        assert sequence is not None, f"slot {slot} is free"
        return sequence

    def apply(self, plan: StepPlan) -> list[SequenceKey]:
        """Bring the batch up to date with a plan's deltas; slots to remove that are free already are passed over.

        Returns the sequences that left.
        """
        left: list[SequenceKey] = []
        for slot in plan.removed:
            sequence = self.sequences[slot]
            if sequence is not None:
                left.append(sequence.request.key)
                self.sequences[slot] = None
                self.scored.discard(slot)
        for new in plan.new:
            self._add(new)
        for slot, block_ids in plan.new_block_ids.items():
            self.tables.append(slot, block_ids)
        return left

    def extend(self, slots: Int32Array, token_ids: NDArray[np.int64]) -> None:
        """One new token for each of these sequences."""
        for slot, token_id in zip(slots.tolist(), token_ids.tolist(), strict=True):
            self[slot].output_token_ids.append(token_id)
        self.num_tokens[slots] += 1
        self.last_token[slots] = token_ids

    def step_input(self, plan: StepPlan) -> StepInput:
        """Fill the buffers with a step's tokens, positions, slots and lengths, in the plan's order."""
        slots, lens, computed = plan.slots, plan.query_lens, plan.num_computed
        buffers, num_seqs, num_tokens = self.buffers, len(slots), plan.total_num_tokens
        cu_seqlens = buffers.cu_seqlens_q.array[: num_seqs + 1]
        np.cumsum(lens, out=cu_seqlens[1:])
        sampled_rows = self._fill_tokens(plan, cu_seqlens)
        positions = buffers.positions.array[:num_tokens]
        if num_tokens == num_seqs:
            positions[:], owner = computed, np.arange(num_seqs)
        else:
            owner = np.repeat(np.arange(num_seqs), lens)
            np.add(np.arange(num_tokens), np.repeat(computed - cu_seqlens[:-1], lens), out=positions)
        seq_lens = buffers.seq_lens.array[:num_seqs]
        np.add(computed, lens, out=seq_lens)
        longest = int(seq_lens.max())
        filled = self.tables.fill(slots, owner, positions, -(-longest // self.block_size))
        view = BatchView(
            num_tokens=num_tokens,
            num_seqs=num_seqs,
            block_size=self.block_size,
            max_query_len=int(lens.max()),
            max_seq_len=longest,
            query_lens=lens.tolist(),
            seq_lens_list=seq_lens.tolist(),
            cu_seqlens_q=buffers.cu_seqlens_q.upload(num_seqs + 1),
            seq_lens=buffers.seq_lens.upload(num_seqs),
            block_table=filled[0][0],
            slot_mapping=filled[0][1],
            positions=buffers.positions.upload(num_tokens),
        )
        views = [view, *(replace(view, block_table=table, slot_mapping=slot) for table, slot in filled[1:])]
        return StepInput(slots, computed, cu_seqlens, sampled_rows, views, plan.drafts)

    def _fill_tokens(self, plan: StepPlan, cu_seqlens: Int32Array) -> NDArray[np.int64]:
        """Write the step's tokens; returns the rows that sample. Most rows compute their last known token only."""
        slots, lens, starts = plan.slots, plan.query_lens, cu_seqlens[:-1]
        token_ids, known = self.buffers.token_ids.array, self.num_tokens[slots]
        token_ids[starts] = self.last_token[slots]
        for row in ((lens != 1) | (plan.num_computed + 1 != known)).nonzero()[0].tolist():
            slot, begin, start = int(slots[row]), int(plan.num_computed[row]), int(starts[row])
            drafts = plan.drafts.get(slot, [])
            tokens = self[slot].tokens(begin, begin + int(lens[row]) - len(drafts)) + drafts
            token_ids[start : start + len(tokens)] = tokens
        ends = plan.num_computed + lens
        if plan.drafts:
            ends -= np.array([len(plan.drafts.get(slot, ())) for slot in slots.tolist()], np.int32)
        rows: NDArray[np.int64] = (ends >= known).nonzero()[0]
        return rows

    def _add(self, new: NewSequence) -> None:
        slot = new.slot
        self.tables.start(slot, new.block_ids)
        output = list(new.output_token_ids)
        known = output or new.request.prompt_token_ids
        self.num_tokens[slot] = len(new.request.prompt_token_ids) + len(output)
        self.last_token[slot] = known[-1]
        row = SampleRow(SequenceSampling(new.request, output))
        self.sequences[slot] = RunningSequence(new.request, output, row)
        if new.request.params.prompt_logprobs is not None:
            self.scored.add(slot)
