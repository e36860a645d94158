"""The rows that a model's last blocks compute, where these store no keys and values (`--kv-sharing-fast-prefill`).

Owns: the part of a step with these rows, as attention sees it. Never does: decide whose results are read (the model runner
does), or compute. Called by: the forward pass, once a step that leaves rows out.

A token's keys and values all come from blocks before the tail. So only the tokens whose logits or hidden states somebody reads
need the tail: those that sample, and all of a prompt whose log-probabilities are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core_runtime.contracts import BatchView
from core_runtime.models.decoder import Decoder
from core_runtime.models.tail import TailStep

Rows = NDArray[np.int64]


class Tail:
    """The last blocks of a model, from block `first` on. first_mixer: the number of their first mixer."""

    def __init__(self, model: Decoder, first: int) -> None:
        self.model = model
        self.first = first
        self.first_mixer = sum(len(block.mixers) for block in model.spec.blocks[:first])

    def step(
        self,
        views: Sequence[BatchView],
        rows: Rows,
        build: Callable[[Sequence[BatchView]], list[Any]],
        begin: Callable[[Tensor], None],
    ) -> TailStep:
        """Return the step of these blocks for `rows`, see `narrowed`.

        build: builds the metadata of their mixers. begin: is called with the rows, int64 [K], before the blocks run.
        """
        parts, chosen = narrowed(views, rows)
        positions = parts[0].positions if parts[0].rotary is None else parts[0].rotary
        metadata = build(parts) if len(rows) else []
        return TailStep(self.first, chosen, positions, metadata, lambda: begin(chosen))


def narrowed(views: Sequence[BatchView], rows: Rows) -> tuple[list[BatchView], Tensor]:
    """Return the part of a step with `rows` alone, one view per KV group, and the rows on the device, int64 [K].

    rows: int64 [K], ascending, the last rows of some of the sequences. Sequences without rows are left out.
    """
    first = views[0]
    counts = _counts(first.query_lens, rows)
    sequences = counts.nonzero()[0]
    lens = counts[sequences].tolist()
    seq_lens = [first.seq_lens_list[index] for index in sequences.tolist()]
    device = first.positions.device
    chosen = torch.from_numpy(rows).to(device)
    members = torch.from_numpy(sequences).to(device)
    shared = replace(
        first,
        num_tokens=len(rows),
        num_seqs=len(lens),
        max_query_len=max(lens, default=0),
        max_seq_len=max(seq_lens, default=0),
        query_lens=lens,
        seq_lens_list=seq_lens,
        cu_seqlens_q=torch.tensor([0, *accumulate(lens)], dtype=torch.int32, device=device),
        seq_lens=first.seq_lens[members],
        positions=first.positions[chosen],
        rotary=None if first.rotary is None else first.rotary[chosen],
        sees_to=None if first.sees_to is None else first.sees_to[chosen],
        state_sources=None,
    )
    parts = [
        replace(shared, block_table=view.block_table[members], slot_mapping=view.slot_mapping[chosen]) for view in views
    ]
    return parts, chosen


def _counts(query_lens: Sequence[int], rows: Rows) -> NDArray[np.int64]:
    """Return how many of `rows` each sequence has. Raises ValueError unless they are its last ones."""
    ends = np.cumsum(query_lens)
    owners = np.searchsorted(ends, rows, side="right")
    counts = np.bincount(owners, minlength=len(ends))
    expected = np.concatenate([np.arange(end - count, end) for end, count in zip(ends, counts, strict=True)])
    if not np.array_equal(rows, expected):
        raise ValueError(
            f"rows {rows.tolist()} of sequences with {list(query_lens)} rows: expected the last ones of each"
        )
    return counts
