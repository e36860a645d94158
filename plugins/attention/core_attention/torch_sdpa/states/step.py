"""A step of layers with a state: the sequence of each row, and the order in which rows are computed.

Owns: the data shared by all layers and ops, computed once per step. Never does: compute an op. Called by: the ops,
`backend.py`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from core_runtime.contracts import BatchView


class Padding(NamedTuple):
    """Positions of a step's rows after each sequence's past rows are inserted before them.

    rows: int64 [T], the step's rows.
    before: int64 [B, past], each sequence's past before this step.
    after: int64 [B, past], its past after this step.
    """

    rows: Tensor
    before: Tensor
    after: Tensor


class Rounds(NamedTuple):
    """A step's rows in rounds: the first token of every sequence, then the second token of every sequence that has one,
    and so on.

    sizes: rows of each round. Sequences are sorted by falling length, so a round takes the first ones.
    sequences: int64 [B], the sequences in that order; None if they already are.
    rows: int64 [T], the rows in the order of the rounds; None if they already are.
    """

    sizes: list[int]
    sequences: Tensor | None
    rows: Tensor | None


class StateMetadata:
    """The metadata of one step for layers with a state.

    view: the step without its padded rows and sequences, if there are any.
    """

    def __init__(self, view: BatchView) -> None:
        self.view = _live(view)
        self._paddings: dict[int, Padding] = {}

    def padding(self, past: int) -> Padding:
        """Return the positions with `past` rows per sequence, computed once for all layers."""
        if past not in self._paddings:
            self._paddings[past] = self._lay_out(past)
        return self._paddings[past]

    @cached_property
    def rounds(self) -> Rounds:
        """Return the order for a recurrence, which takes one token of many sequences at a time."""
        view = self.view
        longest = max(view.query_lens)
        if view.num_seqs == 1:
            return Rounds([1] * longest, None, None)
        if longest == 1:
            return Rounds([view.num_seqs], None, None)
        device = view.cu_seqlens_q.device
        lengths = torch.tensor(view.query_lens, device=device)
        sequences = lengths.argsort(descending=True, stable=True)
        rank = sequences.argsort()
        owner = torch.repeat_interleave(torch.arange(view.num_seqs, device=device), lengths)
        starts = lengths.cumsum(0) - lengths
        age = torch.arange(view.num_tokens, device=device) - starts[owner]
        rows = (age * view.num_seqs + rank[owner]).argsort()
        sizes = torch.bincount(age, minlength=longest)
        return Rounds(sizes.tolist(), sequences, rows)

    def _lay_out(self, past: int) -> Padding:
        view = self.view
        device = view.cu_seqlens_q.device
        lengths = torch.tensor(view.query_lens, device=device)
        sequences = torch.arange(view.num_seqs, device=device)
        owner = torch.repeat_interleave(sequences, lengths)
        rows = torch.arange(view.num_tokens, device=device) + (owner + 1) * past
        last_rows = rows[lengths.cumsum(0) - 1]
        ends = last_rows.unsqueeze(1) + 1
        begins = ends - lengths.unsqueeze(1)
        back = torch.arange(-past, 0, device=device)
        return Padding(rows, begins + back, ends + back)


def _live(view: BatchView) -> BatchView:
    """Return the step without its padding, which follows all live rows and sequences."""
    num_tokens = sum(view.query_lens)
    if num_tokens == view.num_tokens and 0 not in view.query_lens:
        return view
    num_seqs = len(view.query_lens) - view.query_lens.count(0)
    return replace(
        view,
        num_tokens=num_tokens,
        num_seqs=num_seqs,
        query_lens=view.query_lens[:num_seqs],
        seq_lens_list=view.seq_lens_list[:num_seqs],
        cu_seqlens_q=view.cu_seqlens_q[: num_seqs + 1],
        seq_lens=view.seq_lens[:num_seqs],
        block_table=view.block_table[:num_seqs],
        state_sources=None if view.state_sources is None else view.state_sources[:num_seqs],
        slot_mapping=view.slot_mapping[:num_tokens],
        positions=view.positions[:num_tokens],
    )
