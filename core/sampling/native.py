"""Sampling by native kernels: what the sequences of a batch bring, as arrays, and the calls.

Owns: the arrays, kept while the same sequences come in the same order. Never does: decide which rows a kernel may have.
Called by: `core.sampling.sampler`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.api.messages import TokenLogprobs
from core.plugin.contracts import LogprobsKernel, RaceKernel
from core.sampling.state import SequenceSampling

SMALLEST: Final = 1e-37
"""Temperatures below are as good as this one; float32 holds it."""

MOST_LOGPROBS: Final = 64
"""More of the most likely tokens are found faster by partial sorting, in numpy."""

_WORD: Final = 0xFFFFFFFF


class NativeRace:
    """Samples rows with a `RaceKernel`; remembers the parameters of the last batch.

    output_indices, tokens_drawn: int64 of the remembered sequences; -1 where a logit is NaN or infinite.
    """

    def __init__(self, kernel: RaceKernel) -> None:
        self._kernel = kernel
        self._states: list[SequenceSampling] = []

    def tokens(
        self, logits: Tensor, which: Sequence[int], states: list[SequenceSampling], indices: list[int]
    ) -> list[int]:
        """The tokens of the rows `which` of logits float32 [R, V]; -1 where a logit is NaN or infinite.

        states, indices: sequence and output index of each row.
        """
        if states != self._states:
            self.remember(states)
        self.output_indices[:] = indices
        self.draw(logits, None if len(which) == len(logits) else torch.tensor(which))
        tokens: list[int] = self._out.tolist()
        return tokens

    def draw(self, logits: Tensor, which: Tensor | None = None) -> None:
        """Fill `tokens_drawn` for the remembered sequences at their `output_indices`. which: their rows; None: all rows."""
        rows = self._all if which is None else which
        self._kernel(logits, rows, self._key_table, self._temperatures, self._out, self._filters)

    def remember(self, states: list[SequenceSampling], out: Tensor | None = None) -> None:
        """Prepare for the rows of these sequences, in this order. out: int64 [len(states)], where tokens are written."""
        words = [(state.seed & _WORD, state.seed >> 32 & _WORD, 0, state.choice, 0) for state in states]
        self._keys = np.array(words, dtype=np.int64)
        self._key_table = torch.from_numpy(self._keys)
        self.output_indices = self._keys[:, 2]
        heat = [0.0 if state.greedy else max(state.params.temperature, SMALLEST) for state in states]
        self._temperatures = torch.tensor(heat, dtype=torch.float32)
        self._filters: tuple[Tensor, Tensor, Tensor] | None = None
        if any(state.filtered for state in states):
            params = [state.params for state in states]
            least = [math.log(p.min_p) if p.min_p > 0.0 else float(np.finfo(np.float32).min) for p in params]
            self._filters = (
                torch.tensor([max(p.top_k, 0) for p in params], dtype=torch.int64),
                torch.tensor([p.top_p for p in params], dtype=torch.float64),
                torch.tensor(least, dtype=torch.float64).float(),
            )
        self._out = torch.empty(len(states), dtype=torch.int64) if out is None else out
        self.tokens_drawn: NDArray[np.int64] = self._out.numpy()
        self._all = torch.arange(len(states))
        self._states = states


def native_logprobs(
    kernel: LogprobsKernel, logits: Tensor, which: Sequence[int], chosen: Sequence[int], counts: Sequence[int]
) -> list[TokenLogprobs]:
    """Of rows of logits float32 [R, V]: the chosen token's and those of the `counts` most likely, at most MOST_LOGPROBS."""
    counts = [min(count, logits.shape[1]) for count in counts]
    ids = torch.empty(len(which), 1 + max(counts), dtype=torch.int64)
    values, ranks = torch.empty(ids.shape, dtype=torch.float64), torch.empty(len(which), dtype=torch.int64)
    kernel(logits, torch.tensor(which), torch.tensor(chosen), torch.tensor(counts), ids, values, ranks)
    rows = zip(ids.tolist(), values.tolist(), ranks.tolist(), counts, strict=True)
    return [
        TokenLogprobs(tokens[: count + 1], logprobs[: count + 1], [rank, *range(1, count + 1)])
        for tokens, logprobs, rank, count in rows
    ]
