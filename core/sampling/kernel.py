"""The sampling kernel: one token for each row of logits. A provider's, or the reference in numpy.

Owns: `SamplingKernel`, its reference, and the native log-probabilities' call. Never does: adjust logits, or know sequences.
Called by: `core.sampling.sampler`, `core.sampling.logprobs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from core.api.messages import TokenLogprobs
from core.plugin.contracts import LogprobsKernel, RaceKernel
from core.sampling.filters import LOWEST, filtered
from core.sampling.noise import Float32, Ids, NoiseKey
from core.sampling.race import Entrant, winners

SamplingKernel = RaceKernel
"""What turns logits into tokens is the contract of providers' kernels; `numpy_race` says what they compute."""

NO_TOKEN: Final = -1

MOST_LOGPROBS: Final = 64
"""More of the most likely tokens are found faster by partial sorting, in numpy."""


def numpy_race(
    logits: Tensor,
    which: Tensor,
    keys: Tensor,
    temperatures: Tensor,
    out: Tensor,
    filters: tuple[Tensor, Tensor, Tensor] | None = None,
) -> None:
    """The reference of the `RaceKernel` contract, for logits of any type on any device; the other arguments on the host."""
    if logits.device.type != "cpu" and not temperatures.any():
        _largest(logits, which, out)
        return
    values: Float32 = logits.float().cpu().numpy()
    rows: Ids = which.numpy()
    tokens: Ids = out.numpy()
    words: Ids = keys.numpy()
    heat: Float32 = temperatures.numpy()
    tokens[:] = values[rows].argmax(axis=1) if len(rows) != len(values) else values.argmax(axis=1)
    tops: Float32 = values[rows, tokens]
    tokens[~np.isfinite(tops)] = NO_TOKEN
    racing = ((tokens >= 0) & (heat > 0)).nonzero()[0]
    entrants: list[Entrant] = []
    for i in racing.tolist():
        with np.errstate(over="ignore"):  # far below the best with a tiny temperature: -inf is right
            z = (values[rows[i]] - tops[i]) / heat[i]
        limits = None if filters is None else _limits(filters, i)
        entrants.append(_entrant(_key(words[i]), z, limits))
    tokens[racing] = winners(entrants)


def native_logprobs(
    kernel: LogprobsKernel, logits: Tensor, which: Sequence[int], chosen: Sequence[int], counts: Sequence[int]
) -> list[TokenLogprobs]:
    """Of rows of logits float32 [R, V]: the chosen token's and those of the `counts` most likely, at most MOST_LOGPROBS."""
    counts = [min(count, logits.shape[1]) for count in counts]
    ids = torch.empty(len(which), 1 + max(counts), dtype=torch.int64)
    values = torch.empty(ids.shape, dtype=torch.float64)
    ranks = torch.empty(len(which), dtype=torch.int64)
    kernel(logits, torch.tensor(which), torch.tensor(chosen), torch.tensor(counts), ids, values, ranks)
    rows = zip(ids.tolist(), values.tolist(), ranks.tolist(), counts, strict=True)
    return [
        TokenLogprobs(tokens[: count + 1], logprobs[: count + 1], [rank, *range(1, count + 1)])
        for tokens, logprobs, rank, count in rows
    ]


def _largest(logits: Tensor, which: Tensor, out: Tensor) -> None:
    """Nothing but two numbers a row leaves the device."""
    tops, ids = torch.max(logits[which.to(logits.device)], dim=1)
    finite = torch.isfinite(tops)
    out.copy_(torch.where(finite, ids, NO_TOKEN))


def _limits(filters: tuple[Tensor, Tensor, Tensor], row: int) -> tuple[int, float, float] | None:
    """top-k, top-p and the smallest z of a row; None when it has no filter."""
    top_k, top_p, least = (float(column[row]) for column in filters)
    off = top_k <= 0 and top_p >= 1.0 and least <= LOWEST
    return None if off else (int(top_k), top_p, least)


def _entrant(key: NoiseKey, z: Float32, limits: tuple[int, float, float] | None) -> Entrant:
    if limits is None:
        return Entrant(key, z)
    ids, kept = filtered(z, *limits)
    return Entrant(key, kept, ids)


def _key(words: Ids) -> NoiseKey:
    low, high, index, choice, purpose = words.tolist()
    return NoiseKey(high << 32 | low, index, choice, purpose)
