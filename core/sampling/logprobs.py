"""Log-probabilities of raw logits: before masks, penalties and temperature.

Owns: log-softmax, ranks and the top-n choice. Never does: sample. Called by: `core.sampling.sampler` (output tokens),
the worker (prompt tokens).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, from_numpy

from core.api.messages import TokenLogprobs
from core.plugin.contracts import LogprobsKernel
from core.sampling.kernel import MOST_LOGPROBS, native_logprobs
from core.sampling.largest import at_least_kth
from core.sampling.noise import Float32, Ids

SPAN: Final = 8192
"""Vocabulary entries whose powers are summed by themselves; spans are then added in order, whoever has them."""


def token_logprobs(logits: Float32, token_id: int, num: int) -> TokenLogprobs:
    """Of one position. logits: float32 [V], untouched; num: most likely tokens beside the chosen one (-1: all).

    A rank is 1 plus the number of tokens with a larger logit; among equals the lower id comes first.
    """
    largest = logits.max()
    log_total = float(np.log(total_of_spans(span_sums(np.exp(logits - largest)[None]))[0]))
    top = _most_likely(logits, len(logits) if num < 0 else min(num, len(logits)))
    ids = np.concatenate([np.array([token_id], dtype=np.int64), top])
    values = logits[ids].astype(np.float64) - (float(largest) + log_total)
    rank = 1 + int(np.count_nonzero(logits > logits[token_id]))
    return TokenLogprobs(ids.tolist(), values.tolist(), [rank, *range(1, len(top) + 1)])


def many_logprobs(
    kernel: LogprobsKernel | None, logits: Float32, which: Sequence[int], token_ids: Sequence[int], nums: Sequence[int]
) -> list[TokenLogprobs]:
    """Of the rows `which` of logits float32 [R, V], one token and `nums` entry each: by the kernel where it serves."""
    served = [i for i, num in enumerate(nums) if kernel is not None and 0 <= num <= MOST_LOGPROBS]
    found: dict[int, TokenLogprobs] = {}
    if served and kernel is not None:
        picked = ([values[i] for i in served] for values in (which, token_ids, nums))
        found = dict(zip(served, native_logprobs(kernel, from_numpy(logits), *picked), strict=True))
    return [
        found.get(i) or token_logprobs(logits[row], token, num)
        for i, (row, token, num) in enumerate(zip(which, token_ids, nums, strict=True))
    ]


def prompt_logprobs(
    logits: Tensor,
    token_ids: list[int],
    num: int,
    vocab_size: int | None = None,
    kernel: LogprobsKernel | None = None,
) -> list[TokenLogprobs]:
    """Of prompt positions: row i of logits (float32 [R, V]) predicts token_ids[i] ([R]).

    num: most likely tokens beside the prompt's own (-1: all). vocab_size: entries from there on are padding.
    kernel: a native one, for logits on the CPU.
    """
    values = logits[:, :vocab_size].detach().float().cpu().numpy()
    return many_logprobs(kernel, values, range(len(values)), token_ids, [num] * len(values))


def span_sums(powers: Float32) -> NDArray[np.float64]:
    """Sums of neighbouring powers, float64 [R, spans], of float32 [R, n]; the last span may be shorter."""
    rows, size = powers.shape
    whole = size // SPAN
    sums = np.empty((rows, -(-size // SPAN)), np.float64)
    spans = powers[:, : whole * SPAN].reshape(rows, whole, SPAN)
    spans.sum(axis=2, dtype=np.float64, out=sums[:, :whole])
    if whole < sums.shape[1]:
        powers[:, whole * SPAN :].sum(axis=1, dtype=np.float64, out=sums[:, whole])
    return sums


def total_of_spans(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum of each row's spans, from the first to the last."""
    total = np.zeros(len(sums), np.float64)
    for span in sums.T:
        total += span
    return total


def _most_likely(logits: Float32, num: int) -> Ids:
    if num == 0:
        return np.empty(0, dtype=np.int64)
    pool = at_least_kth(logits, num)
    order = np.argsort(-logits[pool], kind="stable")
    return pool[order[:num]]
