"""The persistent batch: what the worker remembers of its sequences between steps.

Owns: known tokens, block tables and sampling states of running sequences; the flat arrays of a step.
Never does: decide what runs (the scheduler) or compute (the model). Called by: the model runner.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from core.api.messages import EngineRequest
from core.api.step_plan import NewSequence, SequenceKey, StepPlan
from core.executor.step_buffers import StepBuffers
from core.plugin.contracts import BatchView
from core.sampling.state import SequenceSampling


@dataclass(slots=True)
class RunningSequence:
    """One sequence. row: its row of the block table. output_token_ids is shared with the sampling state."""

    request: EngineRequest
    output_token_ids: list[int]
    num_computed_tokens: int
    row: int
    num_blocks: int
    sampling: SequenceSampling

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.request.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Known tokens: prompt and output."""
        return len(self.request.prompt_token_ids) + len(self.output_token_ids)

    def tokens(self, start: int, stop: int) -> list[int]:
        """Known tokens in [start, stop)."""
        prompt = self.request.prompt_token_ids
        split = len(prompt)
        if start >= split:
            return self.output_token_ids[start - split : stop - split]
        return prompt[start:stop] + self.output_token_ids[: max(0, stop - split)]


@dataclass(slots=True)
class StepInput:
    """Which sequence each part of a step's flat arrays belongs to, and the arrays themselves."""

    keys: list[SequenceKey]
    starts: list[int]
    view: BatchView
    drafts: dict[SequenceKey, list[int]] = field(default_factory=dict)


class PersistentBatch:
    """Sequences by key, and one int32 block table for all of them."""

    def __init__(self, buffers: StepBuffers, block_size: int) -> None:
        self.buffers = buffers
        self.block_size = block_size
        max_num_seqs, max_blocks_per_seq = buffers.block_table.array.shape
        self.sequences: dict[SequenceKey, RunningSequence] = {}
        self.block_table = np.zeros((max_num_seqs, max_blocks_per_seq), dtype=np.int32)
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))

    def apply(self, plan: StepPlan) -> None:
        """Bring the batch up to date with a plan's deltas."""
        for key in plan.removed:
            self.remove(key)
        for new in plan.new:
            self._add(new)
        for key, groups in plan.new_block_ids.items():
            sequence = self.sequences[key]
            blocks = groups[0]
            self.block_table[sequence.row, sequence.num_blocks : sequence.num_blocks + len(blocks)] = blocks
            sequence.num_blocks += len(blocks)

    def remove(self, key: SequenceKey) -> None:
        """Forget a sequence; unknown keys are ignored."""
        sequence = self.sequences.pop(key, None)
        if sequence is not None:
            self._free_rows.append(sequence.row)

    def _add(self, new: NewSequence) -> None:
        row = self._free_rows.pop()
        blocks = new.block_ids[0]
        self.block_table[row, : len(blocks)] = blocks
        output = list(new.output_token_ids)
        self.sequences[new.request.key] = RunningSequence(
            new.request, output, new.num_computed_tokens, row, len(blocks), SequenceSampling(new.request, output)
        )

    def step_input(self, plan: StepPlan) -> StepInput:
        """Fill the buffers with a step's tokens, positions, slots and lengths, in the plan's order."""
        keys = list(plan.num_scheduled)
        query_lens = list(plan.num_scheduled.values())
        rows = np.empty(len(keys), dtype=np.int64)
        computed = np.empty(len(keys), dtype=np.int64)
        tokens: list[int] = []
        for index, key in enumerate(keys):
            sequence = self.sequences[key]
            rows[index] = sequence.row
            begin = sequence.num_computed_tokens
            computed[index] = begin
            drafts = plan.drafts.get(key)
            if drafts:
                tokens += sequence.tokens(begin, begin + query_lens[index] - len(drafts))
                tokens += drafts
            else:
                tokens += sequence.tokens(begin, begin + query_lens[index])
        buffers, num_seqs, num_tokens = self.buffers, len(keys), len(tokens)
        lengths = np.asarray(query_lens, dtype=np.int64)
        cu_seqlens = buffers.cu_seqlens_q.array[: num_seqs + 1]
        np.cumsum(lengths, out=cu_seqlens[1:])
        buffers.token_ids.array[:num_tokens] = tokens
        positions = buffers.positions.array[:num_tokens]
        if num_tokens == num_seqs:
            positions[:], owner = computed, np.arange(num_seqs)
        else:
            owner = np.repeat(np.arange(num_seqs), lengths)
            np.add(np.arange(num_tokens), np.repeat(computed - cu_seqlens[:-1], lengths), out=positions)
        seq_lens = buffers.seq_lens.array[:num_seqs]
        np.add(computed, lengths, out=seq_lens, casting="same_kind")
        longest = int(seq_lens.max())
        width = -(-longest // self.block_size)
        buffers.block_table.array[:num_seqs, :width] = table = self.block_table[rows, :width]
        block, offset = np.divmod(positions, self.block_size)
        np.add(table[owner, block] * np.int64(self.block_size), offset, out=buffers.slot_mapping.array[:num_tokens])
        view = BatchView(
            num_tokens=num_tokens,
            num_seqs=num_seqs,
            block_size=self.block_size,
            max_query_len=max(query_lens),
            max_seq_len=longest,
            query_lens=query_lens,
            seq_lens_list=seq_lens.tolist(),
            cu_seqlens_q=buffers.cu_seqlens_q.upload(num_seqs + 1),
            seq_lens=buffers.seq_lens.upload(num_seqs),
            block_table=buffers.block_table.upload(num_seqs),
            slot_mapping=buffers.slot_mapping.upload(num_tokens),
            positions=buffers.positions.upload(num_tokens),
        )
        return StepInput(keys, cu_seqlens.tolist(), view, plan.drafts)
