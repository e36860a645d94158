"""The state of a race's filters between their passes over the vocabulary, and what follows from it.

Owns: the memory of a row, and Triton functions that read it. Never does: read logits, launch. Called by: the kernels of
the filters.

A depth is minus a score, 31 bits: 0 for the largest logit. Top-k keeps all candidates down to the depth at which their
number reaches k, top-p down to the depth at which their weight reaches its share of all. That depth is found by its
digits, of 11, 10 and 10 bits: a pass over the vocabulary adds each candidate that shares the digits found so far, or its
weight, to the bin of its next digit, and the programs of the following pass find the bin in which the sum is reached.
Sums are integers, so their order is of no importance.

Nearly all candidates of a trained model are far below the largest, and their atomic additions would meet in a few bins. So
the first digit has two passes: one for near candidates, and one for far ones, which only works if the near ones do not
suffice. The pass of the second digit lists the depths that are still in question. If they are few, as they are then, the
passes after it read this list instead of the vocabulary.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from core_kernels.triton.sampler import candidates

NEAR, FAR, SECOND, THIRD = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
"""The passes of a filter."""
PASSES: Final = (NEAR.value, FAR.value, SECOND.value, THIRD.value)
FIRST_BINS = tl.constexpr(2048)
BINS = tl.constexpr(1024)
FAR_BIN = tl.constexpr(0x414)
"""The first digit of the depth of z = -12: below it, candidates are far."""

# The memory of a row for a filter, int64: bins of the first, second and third digit, then single numbers.
SECOND_BINS = tl.constexpr(2048)
THIRD_BINS = tl.constexpr(3072)
FAR_SUM = tl.constexpr(4096)
LAST = tl.constexpr(4097)
"""The largest depth that passes the filters before."""
FOUND = tl.constexpr(4098)
"""The first digit, and what is still wanted in its bin; after them, the first two digits and the same."""
LISTED = tl.constexpr(4102)
"""How many depths are in question; the list is complete if it has room for them. For both filters in the first's memory."""
SIZE = tl.constexpr(4112)
ROOM = tl.constexpr(4096)
"""Of a row's list of depths, int32."""
NOWHERE = tl.constexpr(2**31)
"""A depth that no candidate has."""


@triton.jit
def depth_of(z: tl.tensor) -> tl.tensor:
    """Return the depth of z: int32, below 0 for NaN."""
    return -candidates.score_of(z)


@triton.jit
def z_of(depth: tl.tensor) -> tl.tensor:
    """Return z of its depth."""
    return tl.where(depth > 0, (depth - 1) | -(2**31), 0).to(tl.float32, bitcast=True)


@triton.jit
def weight_of(z: tl.tensor) -> tl.tensor:
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
def _bins(home: tl.tensor, takes_part: tl.tensor, START: tl.constexpr, COUNT: tl.constexpr) -> tl.tensor:
    """Load the bins of a digit, [LANES, COUNT]."""
    place = home[:, None] + START + tl.arange(0, COUNT)[None, :]
    return tl.load(place, mask=takes_part[:, None], other=0)


@triton.jit
def _reached(bins: tl.tensor, wanted: tl.tensor) -> tl.tensor:
    """Return the first bin [LANES] with which the sum reaches what is wanted, and what is wanted of it.

    It is the number of bins if the sum does not reach it.
    """
    sums = tl.cumsum(bins, 1)
    is_before = sums < wanted[:, None]
    digit = tl.sum(is_before.to(tl.int64), axis=1)
    before = tl.max(tl.where(is_before, sums, 0), axis=1)
    return digit, wanted - before


@triton.jit
def _wanted(
    home: tl.tensor, limit: tl.tensor, bins: tl.tensor, lane: tl.tensor, takes_part: tl.tensor, BY_WEIGHT: tl.constexpr
) -> tl.tensor:
    """Return the count or the weight to be reached. limit: top-k or top-p; bins: those of the first digit."""
    if BY_WEIGHT:
        total = tl.sum(_near(bins), axis=1) + tl.load(home + FAR_SUM, mask=takes_part, other=0)
        share = tl.load(limit + lane, mask=takes_part, other=1.0)
        exact = tl.maximum(share * total.to(tl.float64), 1.0)
        wanted = exact.to(tl.int64)
        wanted += (wanted.to(tl.float64) < exact).to(tl.int64)
    else:
        wanted = tl.load(limit + lane, mask=takes_part, other=0)
    return wanted


@triton.jit
def _near(bins: tl.tensor) -> tl.tensor:
    """Return the bins of the first digit with those of far candidates emptied."""
    return tl.where(tl.arange(0, FIRST_BINS)[None, :] < FAR_BIN, bins, 0)


@triton.jit
def digits_of(
    home: tl.tensor,
    limit: tl.tensor,
    lane: tl.tensor,
    takes_part: tl.tensor,
    BY_WEIGHT: tl.constexpr,
    PASS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return the digits found by the passes before, and whether a row needs this pass. The first part keeps the digits."""
    digits = tl.zeros(lane.shape, tl.int64)
    if PASS == FAR:
        bins = _bins(home, takes_part, 0, FIRST_BINS)
        wanted = _wanted(home, limit, bins, lane, takes_part, BY_WEIGHT)
        takes_part = takes_part & (tl.sum(_near(bins), axis=1) < wanted)
    if PASS >= SECOND:
        if PASS == SECOND:
            bins = _bins(home, takes_part, 0, FIRST_BINS)
            wanted = _wanted(home, limit, bins, lane, takes_part, BY_WEIGHT)
            digits, wanted = _reached(bins, wanted)
        else:
            wanted = tl.load(home + FOUND + 1, mask=takes_part, other=0)
            digit, wanted = _reached(_bins(home, takes_part, SECOND_BINS, BINS), wanted)
            digits = tl.load(home + FOUND, mask=takes_part, other=0) * BINS + digit
        keeps = takes_part & (tl.program_id(1) + tl.zeros_like(lane) == 0)
        place = home + FOUND + 2 * (PASS - SECOND)
        tl.store(place, digits, mask=keeps)
        tl.store(place + 1, wanted, mask=keeps)
    return digits, takes_part


@triton.jit
def last_of(home: tl.tensor, takes_part: tl.tensor, last: tl.tensor) -> tl.tensor:
    """Return the largest depth that passes a filter all of whose passes are done. last: that of the filter before."""
    digits = tl.load(home + FOUND + 2, mask=takes_part, other=0)
    wanted = tl.load(home + FOUND + 3, mask=takes_part, other=0)
    digit, _ = _reached(_bins(home, takes_part, THIRD_BINS, BINS), wanted)
    # where the sum is not reached, the digits are beyond every depth
    return tl.where(takes_part, tl.minimum(digits * BINS + digit, last), last)


@triton.jit
def filters_of(
    top_k: tl.tensor, top_p: tl.tensor, least: tl.tensor, lane: tl.tensor, real: tl.tensor, is_hot: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return whether top-k and top-p apply to each row, and the largest depth that passes min-p."""
    most = tl.load(top_k + lane, mask=real, other=0)
    share = tl.load(top_p + lane, mask=real, other=1.0)
    smallest = tl.load(least + lane, mask=real, other=float("-inf"))
    smallest = tl.where(smallest == 0.0, 0.0, smallest)  # no negative zero
    last = -tl.maximum(candidates.score_of(smallest), candidates.LOWEST_KEY).to(tl.int64)
    is_filtered = is_hot & ((most > 0) | (share < 1.0) | (smallest > -3.4028234663852886e38))
    return is_hot & (most > 0), is_hot & (share < 1.0), tl.where(is_filtered, last, NOWHERE)
