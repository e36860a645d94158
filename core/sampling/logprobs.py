"""Log-probabilities of raw logits: before masks, penalties and temperature.

Owns: log-softmax, ranks and the top-n choice. Never does: sample. Called by: `core.sampling.sampler` (output tokens),
the worker (prompt tokens).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor, from_numpy

from core.api.messages import TokenLogprobs
from core.plugin.contracts import LogprobsKernel
from core.sampling.kernel import MOST_LOGPROBS, native_logprobs
from core.sampling.largest import at_least_kth
from core.sampling.noise import Float32, Ids


def token_logprobs(logits: Float32, token_id: int, num: int) -> TokenLogprobs:
    """Of one position. logits: float32 [V], untouched; num: most likely tokens beside the chosen one (-1: all).

    A rank is 1 plus the number of tokens with a larger logit; among equals the lower id comes first.
    """
    largest = logits.max()
    log_total = float(np.log(np.exp(logits - largest).sum(dtype=np.float64)))
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


def _most_likely(logits: Float32, num: int) -> Ids:
    if num == 0:
        return np.empty(0, dtype=np.int64)
    pool = at_least_kth(logits, num)
    order = np.argsort(-logits[pool], kind="stable")
    return pool[order[:num]]
