"""Logprobs as a kernel returns them: numbers in one piece of memory, which one copy brings to the host.

Owns: the layout of that memory, and its conversion to messages. Never does: compute (a `LogprobsKernel` does), or decide
which rows are reported. Called by: the sampler and `core_runtime.sampling.logprobs` (they have it filled), the steps ahead
(they read it).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.api.messages import TokenLogprobs
from core_runtime.contracts import LogprobsKernel

MOST_LOGPROBS: Final = 64
"""Maximum most likely tokens for a kernel; for more, partial sorting in numpy is faster."""


class LogprobRows(NamedTuple):
    """The rows with logprobs in a step.

    rows: rows of the step, ascending.
    counts: number of most likely tokens of each besides its own, at most MOST_LOGPROBS.

    Memory of S such rows holds their ranks [S], then ids [S, W], then values [S, W] as float64; W is 1 + the largest count.
    """

    rows: list[int]
    counts: list[int]

    @property
    def width(self) -> int:
        """W: entries of a row in the memory."""
        return 1 + max(self.counts)

    @property
    def num_words(self) -> int:
        """64-bit words of the memory."""
        return words_of(len(self.rows), self.width)

    def arrays(self, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return ids int64 [S, W], values float64 [S, W] and ranks int64 [S] as views of `memory`, int64 [num_words]."""
        shape = len(self.rows), self.width
        ranks, ids, values = memory.split(self._lengths)
        return ids.view(shape), values.view(torch.float64).view(shape), ranks

    def entries(self, memory: NDArray[np.int64]) -> list[TokenLogprobs]:
        """Return the logprobs of each row. memory: int64 [num_words]."""
        shape = len(self.rows), self.width
        num_ranks, num_ids, _ = self._lengths
        ranks = memory[:num_ranks].tolist()
        ids = memory[num_ranks : num_ranks + num_ids].reshape(shape).tolist()
        values = memory[num_ranks + num_ids :].view(np.float64).reshape(shape).tolist()
        found = []
        for row_ids, row_values, rank, count in zip(ids, values, ranks, self.counts, strict=True):
            stop = count + 1
            # A row with fewer tokens than the largest count has unused entries at its end.
            row_ranks = [rank, *range(1, stop)]
            found.append(TokenLogprobs(row_ids[:stop], row_values[:stop], row_ranks))
        return found

    @property
    def _lengths(self) -> tuple[int, int, int]:
        num_rows = len(self.rows)
        num_entries = num_rows * self.width
        return num_rows, num_entries, num_entries


def words_of(num_rows: int, width: int) -> int:
    """Return the number of 64-bit words for `num_rows` rows of `width` entries."""
    return num_rows * (1 + 2 * width)


def native_logprobs(
    kernel: LogprobsKernel, logits: Tensor, which: Sequence[int], chosen: Sequence[int], counts: Sequence[int]
) -> list[TokenLogprobs]:
    """Return the logprobs of some rows of logits, by a provider's kernel on the device of the logits.

    logits: float32 [R, V].
    which: the rows.
    chosen: the chosen token of each.
    counts: number of most likely tokens of each, at most MOST_LOGPROBS.
    """
    size = logits.shape[1]
    # A vocabulary can be smaller than the requested count.
    told = LogprobRows(list(which), [min(count, size) for count in counts])
    device = logits.device
    memory = torch.empty(told.num_words, dtype=torch.int64, device=device)
    # One tensor, so that one copy brings all three to the device.
    asked = torch.tensor([told.rows, list(chosen), told.counts], device=device)
    rows, tokens, wanted = asked.unbind(0)
    kernel(logits, rows, tokens, wanted, *told.arrays(memory))
    return told.entries(memory.cpu().numpy())
