"""Steps with more rows and sequences than they need.

Owns: what such a step looks like to a backend, as `BatchView` says. Never does: call a backend.
Called by: the runs that attention backends are checked with.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from core.plugin.contracts import BatchView


@dataclass(frozen=True)
class Padding:
    """Rows and sequences behind those of a step.

    bare: whether only the tensors describe the step, as in a recording for a fixed size.
    """

    rows: int = 3
    sequences: int = 2
    bare: bool = False

    def view(self, view: BatchView) -> BatchView:
        """The step with padding. Padded sequences show the blocks of the first one: whoever uses them spoils it."""
        live, num_seqs = view.num_tokens, view.num_seqs + self.sequences
        padded = replace(
            view,
            num_tokens=live + self.rows,
            num_seqs=num_seqs,
            query_lens=view.query_lens + [0] * self.sequences,
            seq_lens_list=view.seq_lens_list + [0] * self.sequences,
            cu_seqlens_q=torch.cat([view.cu_seqlens_q, torch.full((self.sequences,), live, dtype=torch.int32)]),
            seq_lens=torch.cat([view.seq_lens, torch.zeros(self.sequences, dtype=torch.int32)]),
            block_table=torch.cat([view.block_table, view.block_table[:1].expand(self.sequences, -1)]),
            slot_mapping=torch.cat([view.slot_mapping, torch.full((self.rows,), -1)]),
            positions=torch.cat([view.positions, torch.zeros(self.rows, dtype=torch.int64)]),
        )
        if not self.bare:
            return padded
        longest = view.block_table.shape[1] * view.block_size
        uniform = view.max_query_len == 1
        limits = {"max_query_len": 1 if uniform else padded.num_tokens, "max_seq_len": longest}
        return replace(padded, query_lens=[], seq_lens_list=[], **limits)

    def tensor(self, x: Tensor) -> Tensor:
        """x [T, ...] with NaN in the padded rows."""
        return torch.cat([x, torch.full((self.rows, *x.shape[1:]), torch.nan, dtype=x.dtype)])


NO_PADDING = Padding(0, 0)
