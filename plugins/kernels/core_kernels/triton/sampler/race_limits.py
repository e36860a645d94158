"""The filter kernel: the smallest score that passes min-p, top-k and top-p.

Owns: the kernel. Never does: draw, launch. Called by: the race.

The number of candidates, or their probability, at or above a score is counted exactly; the limit is determined by
bisecting the range of scores 32 times.
"""

from __future__ import annotations

import triton
import triton.language as tl

from core_kernels.triton.sampler import candidates

HALVINGS = tl.constexpr(32)


@triton.jit
def weight(z: tl.tensor) -> tl.tensor:
    """Return e^z in multiples of 2^-30, rounded down, int64, as `core_runtime.sampling.filters.weights` does."""
    x = tl.maximum(z * 1.4426950216293335, -64.0)
    whole = (x + 12582912.0) - 12582912.0  # 1.5 * 2^23: the sum rounds to the nearest integer
    fraction = x - whole
    power = tl.full(z.shape, 0.0013264723820611835, tl.float32)
    power = power * fraction + 0.009671512991189957
    power = power * fraction + 0.05550733581185341
    power = power * fraction + 0.24022242426872253
    power = power * fraction + 0.6931470036506653
    power = power * fraction + 1.0
    exponent = whole.to(tl.int32) + (30 + 127)
    scaled = power * (exponent << 23).to(tl.float32, bitcast=True)
    return scaled.to(tl.int64)


@triton.jit
def _at_or_above(
    least: tl.tensor,
    rows: candidates.Logits,
    top: tl.tensor,
    heat: tl.tensor,
    takes_part: tl.tensor,
    vocab_size: tl.tensor,
    BY_WEIGHT: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Return the number of candidates with a score of at least `least` [LANES], or their total weight: int64."""
    total = tl.zeros([LANES], tl.int64)
    for start in range(0, vocab_size, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        inside = takes_part[:, None] & (ids < vocab_size)[None, :]
        logit = candidates.allowed(rows, candidates.raw_tile(rows, ids, inside), ids, inside)
        z = candidates.distance(logit, top, heat)
        passes = inside & (candidates.score_of(z) >= tl.maximum(least, candidates.LOWEST_KEY)[:, None])
        if BY_WEIGHT:
            total += tl.sum(tl.where(passes, weight(z), 0), axis=1)
        else:
            total += tl.sum(passes.to(tl.int64), axis=1)
    return total


@triton.jit(do_not_specialize=candidates.STEPS)
def limits(
    logits: tl.tensor,
    which: tl.tensor,
    words: tl.tensor,
    mask_index: tl.tensor,
    tops: tl.tensor,
    temperatures: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    least: tl.tensor,
    out: tl.tensor,
    logits_stride: int,
    vocab_size: int,
    count: int,
    part_size: int,
    mask_stride: int,
    PARTS: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Program (rows) writes the smallest score that passes, int32 [count]."""
    lane, real = candidates.lanes_of(count, LANES)
    row = candidates.numbers_of(which, lane, real)
    mask_row = candidates.mask_rows(words, mask_index, lane, real)
    rows = candidates.Logits(logits, row, logits_stride, words, mask_row, mask_stride)
    heat = tl.load(temperatures + lane, mask=real, other=0.0)
    most = tl.load(top_k + lane, mask=real, other=0)
    share = tl.load(top_p + lane, mask=real, other=1.0)
    smallest = tl.load(least + lane, mask=real, other=float("-inf"))
    smallest = tl.where(smallest == 0.0, 0.0, smallest)  # no negative zero
    first = tl.maximum(candidates.score_of(smallest), candidates.LOWEST_KEY)
    top = candidates.largest(tops, lane, real, count, PARTS)
    is_hot = real & (heat > 0.0) & candidates.is_finite(top)
    is_filtered = is_hot & ((most > 0) | (share < 1.0) | (smallest > -3.4028234663852886e38))
    limit = tl.where(is_filtered, first, candidates.NO_LIMIT).to(tl.int64)
    # Two rounds: first top-k by count, then top-p by probability among those.
    for by_weight in tl.static_range(2):
        if by_weight:
            takes_part = is_filtered & (share < 1.0)
        else:
            takes_part = is_filtered & (most > 0)
        if tl.max(takes_part.to(tl.int32), axis=0) > 0:
            low = limit
            high = tl.zeros([LANES], tl.int64)
            target = most.to(tl.float64)
            divisor = tl.where(takes_part, heat, 1.0)
            for turn in range(HALVINGS + 1):
                middle = low + (high - low + 1) // 2
                if turn == 0:
                    middle = low
                found = _at_or_above(middle, rows, top, divisor, takes_part, vocab_size, by_weight, LANES, BLOCK)
                total = found.to(tl.float64)
                if turn == 0:
                    if by_weight:
                        # the first count covers all remaining candidates
                        target = tl.maximum(share * total, 1.0)
                else:
                    low = tl.where(total >= target, middle, low)
                    high = tl.where(total >= target, high, middle - 1)
            limit = tl.where(takes_part, low, limit)
    tl.store(out + lane, limit.to(tl.int32), mask=real)
