"""The sequences of a step that attend together, over keys that ranks divide.

Owns: `StepPart` and its two views: of the gathered keys, and of the records of this rank's own. Never does: communicate.
Called by: `ContextBackend`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from core_distributed.context.division import Division
from core_runtime.contracts import BatchView


class GatheredKeys(NamedTuple):
    """blocks: int64 [n], which the sequences read, each once. metadata: the backend's, of the gathered pieces."""

    blocks: Tensor
    metadata: Any


class Records(NamedTuple):
    """Where ranks write records of their own keys, and read those of their queries.

    num_records: records of a part for each head of queries. bases: int64 [B], where those of a sequence begin.
    piece: successive spans of a rank. own: the backend's metadata of this rank's keys. whole: of all keys.
    """

    num_records: int
    bases: Tensor
    piece: int
    own: Any
    whole: Any


class StepPart:
    """Successive sequences of a step whose blocks fit the room for gathered pieces.

    rows: their rows of the step.
    """

    def __init__(
        self, view: BatchView, division: Division, backend: Any, span_keys: int, first: int, last: int
    ) -> None:
        starts = view.cu_seqlens_q[first : last + 1]
        self.rows = slice(int(starts[0]), int(starts[-1]))
        self._division = division
        self._backend = backend
        self._span_keys = span_keys
        self._view = replace(
            view,
            num_tokens=self.rows.stop - self.rows.start,
            num_seqs=last - first,
            max_query_len=max(view.query_lens[first:last]),
            max_seq_len=max(view.seq_lens_list[first:last]),
            query_lens=view.query_lens[first:last],
            seq_lens_list=view.seq_lens_list[first:last],
            cu_seqlens_q=starts - starts[0],
            seq_lens=view.seq_lens[first:last],
            block_table=view.block_table[first:last],
            slot_mapping=view.slot_mapping[self.rows],
            positions=view.positions[self.rows],
            sees_to=None if view.sees_to is None else view.sees_to[self.rows],
        )

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.rows.stop - self.rows.start

    @property
    def sees_itself(self) -> bool:
        """Whether the last position that a row sees is its own."""
        return self._view.sees_to is None

    @cached_property
    def keys(self) -> GatheredKeys:
        """The blocks that the sequences read, and their pieces in the room as blocks of their own, in the order of tokens."""
        view, division = self._view, self._division
        table = view.block_table.numpy()
        counts = [-(-length // view.block_size) for length in view.seq_lens_list]
        rows = [table[index, :count] for index, count in enumerate(counts)]
        blocks, places = np.unique(np.concatenate(rows), return_inverse=True)
        pieces = np.zeros((len(rows), max(counts), division.size), np.int32)
        begin = 0
        for index, count in enumerate(counts):
            starts = places[begin : begin + count] * division.ranks + division.first
            pieces[index, :count] = starts[:, None] + np.arange(division.size)
            begin += count
        gathered = replace(
            view,
            block_size=division.piece(view.block_size),
            block_table=torch.from_numpy(pieces.reshape(len(rows), -1)),
        )
        return GatheredKeys(torch.from_numpy(blocks.astype(np.int64)), self._backend.build(gathered))

    @cached_property
    def records(self) -> Records:
        """The places of records: of each sequence as many spans as its first rank has, which has most."""
        view, division = self._view, self._division
        longest = division.own_counts(view.seq_lens, view.block_size, 0)
        spans = torch.div(longest + self._span_keys - 1, self._span_keys, rounding_mode="floor")
        counts = spans.to(torch.int64) * view.cu_seqlens_q.diff()
        bases = counts.cumsum(0) - counts
        sees_to = division.own_counts(view.positions + 1, view.block_size) - 1
        lengths = division.own_counts(view.seq_lens, view.block_size)
        own = replace(
            view,
            block_size=division.piece(view.block_size),
            seq_lens=lengths,
            seq_lens_list=lengths.tolist(),
            sees_to=sees_to.to(torch.int32),
        )
        piece = division.piece(view.block_size) // self._span_keys
        return Records(int(counts.sum()), bases, piece, self._backend.build(own), self._backend.build(view))
