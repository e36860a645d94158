"""Log-probabilities of raw logits: before masks, penalties and temperature.

Owns: log-softmax, ranks and the top-n choice. Never does: sample. Called by: `core.sampling.sampler` (output tokens),
the worker (prompt tokens).
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from core.api.messages import TokenLogprobs
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


def prompt_logprobs(
    logits: Tensor, token_ids: list[int], num: int, vocab_size: int | None = None
) -> list[TokenLogprobs]:
    """Of prompt positions: row i of logits (float32 [R, V]) predicts token_ids[i] ([R]).

    num: most likely tokens beside the prompt's own (-1: all). vocab_size: entries from there on are padding.
    """
    values = logits[:, :vocab_size].detach().float().cpu().numpy()
    return [token_logprobs(row, token, num) for row, token in zip(values, token_ids, strict=True)]


def _most_likely(logits: Float32, num: int) -> Ids:
    if num == 0:
        return np.empty(0, dtype=np.int64)
    pool = at_least_kth(logits, num)
    order = np.argsort(-logits[pool], kind="stable")
    return pool[order[:num]]
