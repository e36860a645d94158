"""Sampling from a vocabulary that is split into parts on several devices: the same tokens, to the bit.

Owns: the report of each part about its logits, and how the reports, in order of their ids, become a token. Never does: move
anything between parts. Called by: the owner of a part of the head; tests compare it with the whole.

A part reports nothing as long as the vocabulary: only a largest logit, integers (counts, or weights in multiples of 2⁻³⁰,
which add up to the same in any order) and the best (score, id).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from core_runtime.sampling.filters import LOWEST, weights
from core_runtime.sampling.kernel import NO_TOKEN
from core_runtime.sampling.noise import MAX_GUMBEL_RANGE, Float32, Ids, gumbel, words_at

DIGIT_BITS: Final = 8
NUM_DIGITS: Final = 1 << DIGIT_BITS
DIGITS: Final = (24, 16, 8, 0)
"""Shift of each 8-bit digit in the 32 bits of a score, the highest first."""

Counts = NDArray[np.int64]


@dataclass(slots=True)
class RowParameters:
    """Sampling parameters of the rows, as in a `RaceKernel`.

    keys: int64 [R, 5].
    temperatures: float32 [R].
    top_k: int64 [R].
    top_p: float64 [R].
    least: float32 [R].
    """

    keys: Ids
    temperatures: Float32
    top_k: Ids
    top_p: NDArray[np.float64]
    least: Float32


class VocabularyPart:
    """Consecutive entries of the vocabulary.

    logits: float32 [R, n].
    first: the id of the first entry.
    z: float32 [R, n], scaled logits once `scale` has run.
    """

    def __init__(self, logits: Float32, first: int) -> None:
        self.logits = logits
        self.first = first
        self.z: Float32 = logits

    def largest(self) -> Float32:
        """Return the largest logit of each row, NaN if one is NaN: float32 [R]."""
        best = self.logits.argmax(axis=1)
        rows = np.arange(len(best))
        tops: Float32 = self.logits[rows, best]
        return tops

    def scale(self, tops: Float32, temperatures: Float32) -> None:
        """Set z = (logit - top) / T. tops: the largest logits of the whole vocabulary."""
        racing = temperatures > 0
        heat: Float32 = np.where(racing, temperatures, np.float32(1))
        with np.errstate(over="ignore", invalid="ignore"):  # far below the best with a tiny temperature: -inf is right
            below = self.logits - tops[:, None]
            self.z = below / heat[:, None]

    def histogram(self, rows: Ids, least: Float32, prefix: NDArray[np.uint32], shift: int, *, weigh: bool) -> Counts:
        """Count or weigh candidates by one digit of z, for z of at least `least` that begin with the digits `prefix`.

        rows: rows to count. Returns int64 [len(rows), 256]; digits rise as z falls.
        """
        z = self.z[rows]
        # z is at most 0, and the bits of non-negative floats sort like integers.
        bits = np.abs(z).view(np.uint32)
        inside = z >= least[:, None]
        if shift != DIGITS[0]:
            known = shift + DIGIT_BITS
            expected = prefix >> known
            inside &= bits >> known == expected[:, None]
        row, column = inside.nonzero()
        digit = bits[row, column] >> shift & 0xFF
        counted = None
        if weigh:
            candidates = weights(z[row, column])
            counted = candidates.astype(np.float64)  # sums below 2⁵³: exact
        place = row * NUM_DIGITS + digit
        bins = np.bincount(place, counted, len(rows) * NUM_DIGITS)
        return bins.astype(np.int64).reshape(len(rows), NUM_DIGITS)

    def total_weight(self, rows: Ids, least: Float32) -> Counts:
        """Return the weight of all candidates with z of at least `least`: int64 [len(rows)]."""
        z = self.z[rows]
        inside = z >= least[:, None]
        candidates = np.where(inside, z, np.float32(-np.inf))  # -inf weighs nothing
        total: Counts = weights(candidates).sum(axis=1)
        return total

    def best(self, asked: RowParameters, limits: Float32) -> tuple[Float32, Ids]:
        """Return the best score of each row and the lowest id that has it: float32 and int64 [R]; -inf without a candidate.

        limits: the smallest z that can win.
        """
        best = self.logits.argmax(axis=1)
        each = np.arange(len(best))
        scores: Float32 = self.logits[each, best]
        ids = best + self.first
        racing = asked.temperatures > 0
        scores[racing] = -np.inf
        alive = (self.z >= limits[:, None]) & racing[:, None]
        row, column = alive.nonzero()
        if not len(row):
            return scores, ids

        keys = asked.keys.T.astype(np.uint64)[:, row]
        noise = gumbel(words_at(keys, column + self.first))
        noisy = self.z[row, column] + noise
        # candidates lie row by row: `starts` has the place of each row's first one
        starts = np.flatnonzero(np.diff(row, prepend=-1))
        tops = np.maximum.reduceat(noisy, starts)
        counts = np.diff(starts, append=len(row))
        winning = np.flatnonzero(noisy == np.repeat(tops, counts))
        # several candidates of a row may be equally good; the first has the lowest id
        first = np.flatnonzero(np.diff(row[winning], prepend=-1))
        winners = winning[first]
        drawn = row[starts]
        scores[drawn] = tops
        ids[drawn] = column[winners] + self.first
        return scores, ids


def race_in_parts(parts: Sequence[VocabularyPart], asked: RowParameters) -> Ids:
    """Sample all rows, int64 [R]; -1 where a logit is NaN or infinite. parts: in order of their ids."""
    tops = _maximum([part.largest() for part in parts])
    for part in parts:
        part.scale(tops, asked.temperatures)
    # a candidate further than the noise's range below the best cannot win
    limits = np.maximum(_limits(parts, asked), np.float32(-MAX_GUMBEL_RANGE))
    scores, tokens = parts[0].best(asked, limits)
    for part in parts[1:]:
        others, ids = part.best(asked, limits)
        better = others > scores  # a later part has higher ids, which lose on ties
        scores = np.where(better, others, scores)
        tokens = np.where(better, ids, tokens)
    return np.where(np.isfinite(tops), tokens, NO_TOKEN)


def _limits(parts: Sequence[VocabularyPart], asked: RowParameters) -> Float32:
    """Return the smallest z that passes min-p, then top-k, then top-p: float32 [R]."""
    limits = np.maximum(asked.least, np.float32(LOWEST))
    racing = asked.temperatures > 0
    rows = np.flatnonzero(racing & (asked.top_k > 0))
    if len(rows):
        count = asked.top_k[rows].astype(np.float64)
        limits[rows] = _reach(parts, rows, count, limits[rows], weigh=False)
    rows = np.flatnonzero(racing & (asked.top_p < 1.0))
    if len(rows):
        least = limits[rows]
        totals = [part.total_weight(rows, least) for part in parts]
        target = asked.top_p[rows] * np.sum(totals, axis=0)
        limits[rows] = _reach(parts, rows, target, least, weigh=True)
    return limits


def _reach(
    parts: Sequence[VocabularyPart], rows: Ids, target: NDArray[np.float64], least: Float32, *, weigh: bool
) -> Float32:
    """Search, digit by digit, the largest z such that the candidates from it on reach `target`; `least` if all of them
    do not.
    """
    prefix = np.zeros(len(rows), np.uint32)
    before = np.zeros(len(rows), np.int64)
    reached = np.ones(len(rows), bool)
    each = np.arange(len(rows))
    for shift in DIGITS:
        bins = np.zeros((len(rows), NUM_DIGITS), np.int64)
        for part in parts:
            bins += part.histogram(rows, least, prefix, shift, weigh=weigh)
        sums = before[:, None] + bins.cumsum(axis=1)
        short = sums < target[:, None]
        digit = short.sum(axis=1)
        reached &= digit < NUM_DIGITS
        digit = np.minimum(digit, NUM_DIGITS - 1)
        before = sums[each, digit] - bins[each, digit]
        prefix |= digit.astype(np.uint32) << np.uint32(shift)
    # the digits are those of |z|, and z is never above 0
    limit = -prefix.view(np.float32)
    found: Float32 = np.where(reached, limit, least)
    return found


def _maximum(columns: Sequence[Float32]) -> Float32:
    """Return the largest entry of all columns in each row; NaN wins."""
    with np.errstate(invalid="ignore"):
        found: Float32 = np.maximum.reduce(columns)
    return found
