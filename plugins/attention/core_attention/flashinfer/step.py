"""The pages of a step, as FlashInfer lists them. Owns: `FlashInferStep`. Called by: the backends."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from core_attention.checks import check_tables
from core_runtime.contracts import BatchView


@dataclass(slots=True)
class FlashInferStep:
    """The metadata of one step.

    view: the batch.
    query_starts, page_starts: int32 [B + 1] on the host.
    pages: int32 on the device, the blocks of all sequences.
    lengths: int32 [B] on the host, tokens of each sequence.
    last_lengths: int32 [B] on the host, tokens in each sequence's last block.
    plans: by kind of layer, made at its first layer. A recording's are those of `Recorded`.
    """

    view: BatchView
    query_starts: Tensor
    page_starts: Tensor
    pages: Tensor
    lengths: Tensor
    last_lengths: Tensor
    plans: dict[Hashable, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, view: BatchView, num_seqs: int | None = None) -> FlashInferStep:
        """List the pages of all sequences, one sequence after another. num_seqs: with padded ones, which have no page."""
        check_tables(view)
        block_size = view.block_size
        missing = [0] * (0 if num_seqs is None else num_seqs - len(view.query_lens))
        counts = [-(-length // block_size) for length in view.seq_lens_list]
        last = [length - (count - 1) * block_size for length, count in zip(view.seq_lens_list, counts, strict=True)]
        rows = [view.block_table[index, :count] for index, count in enumerate(counts)]
        return cls(
            view,
            _ends(view.query_lens + missing),
            _ends(counts + missing),
            torch.cat(rows),
            torch.tensor(view.seq_lens_list + missing, dtype=torch.int32),
            torch.tensor(last + missing, dtype=torch.int32),
        )


def _ends(lengths: list[int]) -> Tensor:
    """Return 0 followed by the cumulative sums of the lengths, int32."""
    ends = [0]
    for length in lengths:
        ends.append(ends[-1] + length)
    return torch.tensor(ends, dtype=torch.int32)
