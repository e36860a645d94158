"""Steps with more rows than they need, so that a recording of that size can be used.

Owns: the content of the rows and sequences that belong to no step. Never does: choose a size, or compute.
Called by: the forward pass.
"""

from __future__ import annotations

from dataclasses import replace

from core_runtime.contracts import BatchView
from core_runtime.executor.steps.buffers import StepBuffers


def pad(buffers: StepBuffers, view: BatchView, num_tokens: int, num_seqs: int, *, adapted: bool) -> None:
    """Make the rows and sequences after those of the step harmless, as `BatchView` says.

    adapted: whether rows have adapters.
    """
    rows = slice(view.num_tokens, num_tokens)
    sequences = slice(view.num_seqs, num_seqs)
    ends = slice(view.num_seqs + 1, num_seqs + 1)
    buffers.token_ids.array[rows] = 0
    buffers.positions.array[rows] = 0
    if buffers.rotary is not None:
        buffers.rotary.array[rows] = 0
        buffers.rotary.changed(num_tokens)
    # Slot -1 stores nothing, so padded rows leave the KV cache alone.
    for slots in buffers.slot_mappings:
        slots.array[rows] = -1
        slots.changed(num_tokens)
    if adapted and buffers.adapter_rows is not None:
        buffers.adapter_rows.array[rows] = -1
        buffers.adapter_rows.changed(num_tokens)
    buffers.seq_lens.array[sequences] = 0
    buffers.cu_seqlens_q.array[ends] = view.num_tokens
    buffers.positions.changed(num_tokens)
    buffers.seq_lens.changed(num_seqs)
    buffers.cu_seqlens_q.changed(num_seqs + 1)


def fixed_views(
    buffers: StepBuffers, view: BatchView, num_tokens: int, num_seqs: int, max_query_len: int
) -> list[BatchView]:
    """Return views of each KV group that hold for every step of this size: they contain only buffers and limits.

    view: the view of a step, of any group. max_query_len: limit of the tokens of a sequence.
    """
    _, max_num_blocks = buffers.block_tables[0].tensor.shape
    shared = replace(
        view,
        num_tokens=num_tokens,
        num_seqs=num_seqs,
        max_query_len=max_query_len,
        max_seq_len=max_num_blocks * view.block_size,
        query_lens=[],
        seq_lens_list=[],
        cu_seqlens_q=buffers.cu_seqlens_q.tensor[: num_seqs + 1],
        seq_lens=buffers.seq_lens.tensor[:num_seqs],
        positions=buffers.positions.tensor[:num_tokens],
        rotary=None if buffers.rotary is None else buffers.rotary.tensor[:num_tokens],
    )
    fixed: list[BatchView] = []
    for group, (tables, slots) in enumerate(zip(buffers.block_tables, buffers.slot_mappings, strict=True)):
        block_table = tables.tensor[:num_seqs]
        sources = buffers.sources(group, block_table)
        slot_mapping = slots.tensor[:num_tokens]
        fixed.append(replace(shared, block_table=block_table, slot_mapping=slot_mapping, state_sources=sources))
    return fixed
