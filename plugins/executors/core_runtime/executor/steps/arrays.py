"""Filling of a step's flat arrays, for any sequences of the batch and any part of their tokens.

Owns: the layout of tokens, positions, lengths and block tables in the step's buffers. Never does: remember a
sequence, or decide what a step computes. Called by: the persistent batch (steps of the model) and the draft pass.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from core.api.step_plan import Int32Array
from core_runtime.contracts import BatchView
from core_runtime.executor.steps.block_tables import BlockTables
from core_runtime.executor.steps.buffers import StepBuffers


def fill_arrays(tables: BlockTables, slots: Int32Array, lens: Int32Array, computed: Int32Array) -> Int32Array:
    """Write positions, lengths and block tables of a step into the buffers of `tables`.

    slots: int32 [B], slots of the sequences.
    lens: int32 [B], tokens that each computes.
    computed: int32 [B], tokens of each that come before them.
    Returns the start of each sequence's tokens, int32 [B + 1].
    """
    buffers = tables.buffers
    num_seqs = len(slots)
    cu_seqlens: Int32Array = buffers.cu_seqlens_q.array[: num_seqs + 1]
    np.cumsum(lens, out=cu_seqlens[1:])
    num_tokens = int(cu_seqlens[-1])
    positions: NDArray[np.int64] = buffers.positions.array[:num_tokens]
    if num_tokens == num_seqs:
        owner = np.arange(num_seqs)
        positions[:] = computed
    else:
        owner = np.repeat(np.arange(num_seqs), lens)
        # a token's position is its index in the step plus an offset that is constant within its sequence
        begins = computed - cu_seqlens[:-1]
        offsets = np.repeat(begins, lens)
        np.add(np.arange(num_tokens), offsets, out=positions)
    seq_lens = buffers.seq_lens.array[:num_seqs]
    np.add(computed, lens, out=seq_lens)
    longest = int(seq_lens.max())
    width = -(-longest // tables.block_size)
    tables.fill(slots, owner, positions, width)
    return cu_seqlens


def fill_tokens(
    buffers: StepBuffers,
    known: Int32Array,
    slots: Int32Array,
    lens: Int32Array,
    computed: Int32Array,
    cu_seqlens: Int32Array,
) -> None:
    """Write the step's tokens. known: int32 [slots, length], the tokens of all sequences."""
    token_ids = buffers.token_ids.array
    firsts = cu_seqlens[:-1]
    token_ids[firsts] = known[slots, computed]
    # Most sequences compute one token: these are written at once, and only longer ones in a loop.
    longer = (lens != 1).nonzero()[0]
    for row in longer.tolist():
        start = cu_seqlens[row]
        stop = cu_seqlens[row + 1]
        begin = computed[row]
        end = begin + lens[row]
        token_ids[start:stop] = known[slots[row], begin:end]


def step_views(buffers: StepBuffers, lens: Int32Array, block_size: int) -> list[BatchView]:
    """Return the step in the buffers as attention sees it, one view per KV group. lens: int32 [B], tokens of each
    sequence.
    """
    num_seqs = len(lens)
    num_tokens = int(buffers.cu_seqlens_q.array[num_seqs])
    seq_lens_list = buffers.seq_lens.array[:num_seqs].tolist()
    tables = [table.upload(num_seqs) for table in buffers.block_tables]
    mappings = [mapping.upload(num_tokens) for mapping in buffers.slot_mappings]
    view = BatchView(
        num_tokens=num_tokens,
        num_seqs=num_seqs,
        block_size=block_size,
        max_query_len=int(lens.max()),
        max_seq_len=max(seq_lens_list),
        query_lens=lens.tolist(),
        seq_lens_list=seq_lens_list,
        cu_seqlens_q=buffers.cu_seqlens_q.upload(num_seqs + 1),
        seq_lens=buffers.seq_lens.upload(num_seqs),
        block_table=tables[0],
        state_sources=buffers.sources(0, tables[0]),
        slot_mapping=mappings[0],
        positions=buffers.positions.upload(num_tokens),
        rotary=None if buffers.rotary is None else buffers.rotary.upload(num_tokens),
    )
    views = [view]
    for group in range(1, len(tables)):
        table = tables[group]
        sources = buffers.sources(group, table)
        views.append(replace(view, block_table=table, slot_mapping=mappings[group], state_sources=sources))
    return views
