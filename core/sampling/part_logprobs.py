"""Log-probabilities from a vocabulary that is cut in parts: the same as of the whole, to the bit.

Owns: what a part tells of its logits, and how the words of all parts become log-probabilities. Never does: move anything
between parts. Called by: whoever holds a part of the head; tests hold it against `core.sampling.logprobs`.

The powers of the whole are summed by spans of `SPAN` entries. A part sums the spans that it has, and hands over the powers of
one that goes across its border: cut at multiples of `SPAN`, and none does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.api.messages import TokenLogprobs
from core.sampling.logprobs import SPAN, span_sums, total_of_spans
from core.sampling.noise import Float32, Ids


@dataclass(slots=True)
class Powers:
    """e^(logit - largest) of one part.

    head: float32 [R, h], of a span that began in an earlier part.
    sums: float64 [R, s], of the spans that the part has.
    tail: float32 [R, t], of a span that goes on in a later part, or ends the vocabulary.
    """

    head: Float32
    sums: NDArray[np.float64]
    tail: Float32


def powers_of(logits: Float32, first: int, tops: Float32) -> Powers:
    """What a part tells. logits: float32 [R, n] of the ids from `first` on; tops: [R], the largest of the whole."""
    powers = np.exp(logits - tops[:, None])
    size = powers.shape[1]
    begin = min(-first % SPAN, size)
    end = begin + (size - begin) // SPAN * SPAN
    sums = span_sums(np.ascontiguousarray(powers[:, begin:end]))
    return Powers(powers[:, :begin], sums, powers[:, end:])


def log_totals(parts: Sequence[Powers]) -> NDArray[np.float64]:
    """ln of the sum of all powers, float64 [R]. parts: in order of their ids."""
    sums: list[NDArray[np.float64]] = []
    begun: list[Float32] = []
    for part in parts:
        begun.append(part.head)
        if part.sums.shape[1] or part.tail.shape[1]:
            sums += [_of_fragments(begun), part.sums]
            begun = [part.tail]
    sums.append(_of_fragments(begun))
    total: NDArray[np.float64] = np.log(total_of_spans(np.concatenate(sums, axis=1)))
    return total


def most_likely_of(logits: Float32, first: int, num: int) -> tuple[Ids, Float32]:
    """The `num` most likely ids of a part and their logits, falling, the lower id first on ties: [R, at most num]."""
    order = np.argsort(-logits, axis=1, kind="stable")[:, :num]
    return order + first, np.take_along_axis(logits, order, axis=1)


def logprobs_in_parts(parts: Sequence[Float32], tokens: Ids, num: int) -> list[TokenLogprobs]:
    """Of each row's token and the `num` most likely ones. parts: logits float32 [R, n], in order of their ids."""
    firsts = np.cumsum([0, *(part.shape[1] for part in parts)])[:-1].tolist()
    tops: Float32 = np.maximum.reduce([part.max(axis=1) for part in parts])
    totals = tops + log_totals([powers_of(part, first, tops) for part, first in zip(parts, firsts, strict=True)])
    chosen: Float32 = np.maximum.reduce(
        [_logit_of(part, first, tokens) for part, first in zip(parts, firsts, strict=True)]
    )
    ranks = 1 + np.sum([(part > chosen[:, None]).sum(axis=1) for part in parts], axis=0)
    found = [most_likely_of(part, first, num) for part, first in zip(parts, firsts, strict=True)]
    ids = np.concatenate([ids for ids, _ in found], axis=1)
    logits = np.concatenate([values for _, values in found], axis=1)
    order = np.argsort(-logits, axis=1, kind="stable")[:, :num]
    ids = np.concatenate((tokens[:, None], np.take_along_axis(ids, order, axis=1)), axis=1)
    logits = np.concatenate((chosen[:, None], np.take_along_axis(logits, order, axis=1)), axis=1)
    values = logits.astype(np.float64) - totals[:, None]
    entries = zip(ids.tolist(), values.tolist(), ranks.tolist(), strict=True)
    return [TokenLogprobs(one, logprobs, [rank, *range(1, len(one))]) for one, logprobs, rank in entries]


def _of_fragments(begun: Sequence[Float32]) -> NDArray[np.float64]:
    """The sum of a span that lies in pieces, float64 [R, 1], or [R, 0] when there is nothing of it."""
    return span_sums(np.concatenate(begun, axis=1))


def _logit_of(logits: Float32, first: int, tokens: Ids) -> Float32:
    """The logits of tokens that a part has, -inf of others."""
    places = tokens - first
    inside = (places >= 0) & (places < logits.shape[1])
    values = logits[np.arange(len(tokens)), np.where(inside, places, 0)]
    found: Float32 = np.where(inside, values, np.float32(-np.inf))
    return found
