"""Logprobs from a vocabulary that is split into parts: the same as those of the whole, to the bit.

Owns: the report of each part about its logits, and how reports become logprobs. Never does: move anything
between parts. Called by: the owner of a part of the head; tests compare it with `core_runtime.sampling.logprobs`.

The powers of the whole are summed by spans of `SPAN` entries. A part sums the spans that lie within it, and passes on the
powers of a span that crosses its border. There is none if the vocabulary is split at multiples of `SPAN`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.api.messages import TokenLogprobs
from core_runtime.sampling.logprobs import SPAN, span_sums, total_of_spans
from core_runtime.sampling.noise import Float32, Ids

ABSENT = np.float32(-np.inf)
"""Logit of a token that belongs to another part."""


@dataclass(slots=True)
class Powers:
    """Powers e^(logit - largest) of one part.

    head: float32 [R, h], powers of a span that began in an earlier part.
    sums: float64 [R, s], sums of the spans within the part.
    tail: float32 [R, t], powers of a span that continues in a later part, or ends the vocabulary.
    """

    head: Float32
    sums: NDArray[np.float64]
    tail: Float32


def powers_of(logits: Float32, first: int, tops: Float32) -> Powers:
    """Return the report of one part.

    logits: float32 [R, n] of the ids from `first` on.
    tops: float32 [R], the largest logit of the whole vocabulary.
    """
    powers = np.exp(logits - tops[:, None])
    size = powers.shape[1]
    # The first whole span of the part starts at the next multiple of SPAN.
    begin = min(-first % SPAN, size)
    whole_spans = (size - begin) // SPAN
    end = begin + whole_spans * SPAN
    whole = np.ascontiguousarray(powers[:, begin:end])
    head = powers[:, :begin]
    tail = powers[:, end:]
    return Powers(head, span_sums(whole), tail)


def log_totals(parts: Sequence[Powers]) -> NDArray[np.float64]:
    """Return ln of the sum of all powers, float64 [R]. parts: in order of their ids."""
    sums: list[NDArray[np.float64]] = []
    begun: list[Float32] = []
    for part in parts:
        begun.append(part.head)
        # Otherwise the part lies within one span, which continues in the next part.
        if part.sums.shape[1] or part.tail.shape[1]:
            sums += [_of_fragments(begun), part.sums]
            begun = [part.tail]
    sums.append(_of_fragments(begun))
    spans = np.concatenate(sums, axis=1)
    total: NDArray[np.float64] = np.log(total_of_spans(spans))
    return total


def most_likely_of(logits: Float32, first: int, num: int) -> tuple[Ids, Float32]:
    """Return the `num` most likely ids of a part and their logits, descending, the lower id first on ties: [R, at most
    num].
    """
    order = np.argsort(-logits, axis=1, kind="stable")[:, :num]
    return order + first, np.take_along_axis(logits, order, axis=1)


def logprobs_in_parts(parts: Sequence[Float32], tokens: Ids, num: int) -> list[TokenLogprobs]:
    """Return logprobs of each row's token and the `num` most likely ones. parts: logits float32 [R, n], in order of
    their ids.
    """
    largest = [part.max(axis=1) for part in parts]
    tops: Float32 = np.maximum.reduce(largest)
    powers: list[Powers] = []
    token_logits: list[Float32] = []
    top_ids: list[Ids] = []
    top_logits: list[Float32] = []
    first = 0
    for part in parts:
        powers.append(powers_of(part, first, tops))
        token_logits.append(_logit_of(part, first, tokens))
        best_ids, best_logits = most_likely_of(part, first, num)
        top_ids.append(best_ids)
        top_logits.append(best_logits)
        first += part.shape[1]

    chosen: Float32 = np.maximum.reduce(token_logits)
    ranks = np.ones(len(tokens), np.int64)
    for part in parts:
        larger = part > chosen[:, None]
        ranks += larger.sum(axis=1)
    ids, logits = _most_likely(top_ids, top_logits, num)
    ids = np.concatenate((tokens[:, None], ids), axis=1)
    logits = np.concatenate((chosen[:, None], logits), axis=1)
    totals = tops + log_totals(powers)
    values = logits.astype(np.float64) - totals[:, None]

    answers = []
    for row_ids, logprobs, rank in zip(ids.tolist(), values.tolist(), ranks.tolist(), strict=True):
        row_ranks = [rank, *range(1, len(row_ids))]
        answers.append(TokenLogprobs(row_ids, logprobs, row_ranks))
    return answers


def _most_likely(ids: Sequence[Ids], logits: Sequence[Float32], num: int) -> tuple[Ids, Float32]:
    """Merge the most likely tokens of all parts, descending."""
    all_ids = np.concatenate(ids, axis=1)
    all_logits = np.concatenate(logits, axis=1)
    # stable: parts come in order of their ids, so the lower id stays first on ties
    order = np.argsort(-all_logits, axis=1, kind="stable")[:, :num]
    best_ids = np.take_along_axis(all_ids, order, axis=1)
    best_logits = np.take_along_axis(all_logits, order, axis=1)
    return best_ids, best_logits


def _of_fragments(begun: Sequence[Float32]) -> NDArray[np.float64]:
    """Return the sum of a span that is split over parts, float64 [R, 1], or [R, 0] if it is empty."""
    return span_sums(np.concatenate(begun, axis=1))


def _logit_of(logits: Float32, first: int, tokens: Ids) -> Float32:
    """Return the logits of tokens in a part, -inf for others."""
    places = tokens - first
    inside = (places >= 0) & (places < logits.shape[1])
    rows = np.arange(len(tokens))
    columns = np.where(inside, places, 0)
    values = logits[rows, columns]
    found: Float32 = np.where(inside, values, ABSENT)
    return found
