"""Logprobs of logits, or the logits themselves.

Owns: log-softmax, ranks and the top-n choice. Never does: sample, or decide which logits are reported.
Called by: `core_runtime.sampling.reports` (output tokens), the worker (prompt tokens).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.api.messages import TokenLogprobs
from core_runtime.contracts import LogprobsKernel
from core_runtime.sampling.changes.host_logits import HostLogits
from core_runtime.sampling.largest import at_least_kth
from core_runtime.sampling.logprob_rows import MOST_LOGPROBS, native_logprobs
from core_runtime.sampling.noise import Float32, Ids

SPAN: Final = 8192
"""Vocabulary entries per partial sum. Partial sums are added in order, so the total does not depend on where they are
made.
"""


def token_logprobs(logits: Float32, token_id: int, num: int) -> TokenLogprobs:
    """Return the logprobs of one position.

    logits: float32 [V], not modified.
    num: number of most likely tokens besides the chosen one (-1: all).

    A rank is 1 plus the number of tokens with a larger logit; among equals the lower id comes first.
    """
    size = len(logits)
    largest = logits.max()
    powers = np.exp(logits - largest)
    total = total_of_spans(span_sums(powers[None]))[0]
    log_total = float(np.log(total))

    count = size if num < 0 else min(num, size)
    top = _most_likely(logits, count)
    chosen = np.array([token_id], dtype=np.int64)
    ids = np.concatenate([chosen, top])
    normalizer = float(largest) + log_total
    values = logits[ids].astype(np.float64) - normalizer
    num_larger = int(np.count_nonzero(logits > logits[token_id]))
    ranks = [1 + num_larger, *range(1, len(top) + 1)]
    return TokenLogprobs(ids.tolist(), values.tolist(), ranks)


def many_logprobs(
    kernel: LogprobsKernel | None,
    logits: HostLogits,
    which: Sequence[int],
    token_ids: Sequence[int],
    nums: Sequence[int],
    *,
    as_logits: bool = False,
) -> list[TokenLogprobs]:
    """Return the logprobs of some rows, by the kernel where it can.

    kernel: kernel for the device of the logits; None: there is none.
    which: the rows.
    token_ids: the chosen token of each.
    nums: number of most likely tokens of each (-1: all).
    as_logits: return logits of these tokens instead of logprobs.
    """
    found: dict[int, TokenLogprobs] = {}
    if kernel is not None:
        # The kernel has room for MOST_LOGPROBS; larger requests go to numpy.
        served = [i for i, num in enumerate(nums) if 0 <= num <= MOST_LOGPROBS]
        if served:
            rows = [which[i] for i in served]
            tokens = [token_ids[i] for i in served]
            counts = [nums[i] for i in served]
            answers = native_logprobs(kernel, logits.tensor, rows, tokens, counts)
            found = dict(zip(served, answers, strict=True))

    everything = []
    for i, (row, token, num) in enumerate(zip(which, token_ids, nums, strict=True)):
        one = found.get(i)
        if one is None:
            one = token_logprobs(logits[row], token, num)
        everything.append(one)
    if as_logits:
        for row, entry in zip(which, everything, strict=True):
            entry.logprobs = logits.some(row, entry.token_ids)
    return everything


def prompt_logprobs(
    logits: Tensor,
    token_ids: list[int],
    num: int,
    vocab_size: int | None = None,
    kernel: LogprobsKernel | None = None,
    *,
    as_logits: bool = False,
) -> list[TokenLogprobs]:
    """Return the logprobs of prompt positions.

    logits: float32 [R, V]; row i predicts token_ids[i].
    num: number of most likely tokens besides the prompt's own (-1: all).
    vocab_size: entries from this one on are padding.
    kernel: native kernel for the device of the logits.
    as_logits: see `many_logprobs`.
    """
    whole = logits[:, :vocab_size].detach()
    count = len(whole)
    values = HostLogits(whole)
    if kernel is None:
        values.bring(range(count))
    return many_logprobs(kernel, values, range(count), token_ids, [num] * count, as_logits=as_logits)


def numpy_logprobs(
    logits: Tensor, which: Tensor, chosen: Tensor, counts: Tensor, ids: Tensor, values: Tensor, ranks: Tensor
) -> None:
    """Run the reference of the `LogprobsKernel` contract, on the host."""
    asked = zip(which.tolist(), chosen.tolist(), counts.tolist(), strict=True)
    for place, (row, token, count) in enumerate(asked):
        told = token_logprobs(logits[row].numpy(), token, count)
        width = count + 1
        ids[place, :width] = torch.tensor(told.token_ids)
        values[place, :width] = torch.tensor(told.logprobs, dtype=torch.float64)
        ranks[place] = told.ranks[0]


def span_sums(powers: Float32) -> NDArray[np.float64]:
    """Return sums of consecutive powers, float64 [R, spans], for float32 [R, n]; the last span may be shorter."""
    rows, size = powers.shape
    whole = size // SPAN
    end = whole * SPAN
    num_spans = -(-size // SPAN)
    sums = np.empty((rows, num_spans), np.float64)
    spans = powers[:, :end].reshape(rows, whole, SPAN)
    spans.sum(axis=2, dtype=np.float64, out=sums[:, :whole])
    if whole < num_spans:
        shorter = powers[:, end:]
        shorter.sum(axis=1, dtype=np.float64, out=sums[:, whole])
    return sums


def total_of_spans(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sum of each row's spans, added from the first to the last."""
    total = np.zeros(len(sums), np.float64)
    # A loop, not `sum`: numpy's pairwise summation would add in another order.
    for span in sums.T:
        total += span
    return total


def _most_likely(logits: Float32, num: int) -> Ids:
    if num == 0:
        return np.empty(0, dtype=np.int64)
    pool = at_least_kth(logits, num)
    order = np.argsort(-logits[pool], kind="stable")
    return pool[order[:num]]
