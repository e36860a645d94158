"""Padded steps: steps with more rows and sequences than they need.

Owns: the form of such a step, as `BatchView` defines it. Never does: call a backend.
Called by: the test runs of attention backends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from core_runtime.contracts import BatchView


@dataclass(frozen=True)
class Padding:
    """Padding rows and sequences after those of a step.

    bare: whether only the tensors describe the step, as in a recording of fixed size.
    """

    rows: int = 3
    sequences: int = 2
    bare: bool = False

    def view(self, view: BatchView) -> BatchView:
        """Return the step with padding. Padded sequences point to the blocks of the first one, so a backend that uses
        them corrupts it.
        """
        live = view.num_tokens
        padded_rows = (self.rows,)
        padded_seqs = (self.sequences,)
        ends = torch.full(padded_seqs, live, dtype=torch.int32)
        lengths = torch.zeros(padded_seqs, dtype=torch.int32)
        tables = view.block_table[:1].expand(self.sequences, -1)
        slots = torch.full(padded_rows, -1)
        positions = torch.zeros(padded_rows, dtype=torch.int64)
        padded = replace(
            view,
            num_tokens=live + self.rows,
            num_seqs=view.num_seqs + self.sequences,
            query_lens=view.query_lens + [0] * self.sequences,
            seq_lens_list=view.seq_lens_list + [0] * self.sequences,
            cu_seqlens_q=torch.cat([view.cu_seqlens_q, ends]),
            seq_lens=torch.cat([view.seq_lens, lengths]),
            block_table=torch.cat([view.block_table, tables]),
            slot_mapping=torch.cat([view.slot_mapping, slots]),
            positions=torch.cat([view.positions, positions]),
        )
        if not self.bare:
            return padded
        longest = view.block_table.shape[1] * view.block_size
        uniform = view.max_query_len == 1
        limits = {"max_query_len": 1 if uniform else padded.num_tokens, "max_seq_len": longest}
        return replace(padded, query_lens=[], seq_lens_list=[], **limits)

    def tensor(self, x: Tensor) -> Tensor:
        """Return x [T, ...] with NaN in the padded rows."""
        shape = (self.rows, *x.shape[1:])
        padding = torch.full(shape, torch.nan, dtype=x.dtype)
        return torch.cat([x, padding])


NO_PADDING = Padding(0, 0)
