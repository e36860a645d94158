"""The state of a race's filters between their kernels, and what follows from it.

Owns: the memory of a row, and Triton functions that read it. Never does: read logits, launch. Called by: the kernels of
the filters.

A depth is minus a score, 31 bits: 0 for the largest logit. Top-k keeps all candidates down to the depth at which their
number reaches k, top-p down to the depth at which their weight reaches its share of all. That depth is found by its
digits, of 11, 10 and 10 bits: each candidate that shares the digits found so far, or its weight, is added to the bin of
its next digit, and the bin is looked up in which the sum is reached. Sums are integers, so their order is of no
importance.

Nearly all candidates of a trained model are far below the largest, and their atomic additions would meet in a few bins. So
far ones are first counted by a few ranges of depths. These and the bins of near ones tell to which depth candidates are
still in question. A row's list of them is short, as a rule, and one program finds all digits from it.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from core_kernels.triton.sampler import candidates

NEAR, FAR, SECOND, THIRD = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
"""The passes of a filter: near and far candidates by their first digit, then the other digits."""
FIRST_BINS = tl.constexpr(2048)
BINS = tl.constexpr(1024)
FAR_BIN = tl.constexpr(0x414)
"""The first digit of the depth of z = -12: from there on, candidates are far."""
FAR_DEPTH = tl.constexpr(0x41400000)
WITHIN_16, WITHIN_24, WITHIN_40 = tl.constexpr(0x41800000), tl.constexpr(0x41C00000), tl.constexpr(0x42200000)
"""The depths of z = -16, -24 and -40, at which the ranges of far candidates end."""
DEEPEST = tl.constexpr(2**31 - 1)

# The memory of a row for a filter, int64: bins of the first, second and third digit, then single numbers.
SECOND_BINS = tl.constexpr(2048)
THIRD_BINS = tl.constexpr(3072)
FAR_SUMS = tl.constexpr(4096)
"""Sums of far candidates within 16, 24 and 40, and of all of them."""
LISTED = tl.constexpr(4100)
"""How many depths are in question; the list is complete if it has room for them."""
SIZE = tl.constexpr(4112)
WHOLE_SIZE: Final = 2 * SIZE.value
"""A row's numbers for both filters: first those of top-k, or of top-p where it is alone, then those of top-p after top-k."""
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
def reached(
    home: tl.tensor, wanted: tl.tensor, takes_part: tl.tensor, PASS: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Return the first bin [LANES] of a pass's digit with which the sum reaches what is wanted, and what is wanted of it.

    It is the number of bins if the sum does not reach it.
    """
    start: tl.constexpr = SECOND_BINS if PASS == SECOND else THIRD_BINS if PASS == THIRD else 0
    bins = _bins(home, takes_part, start, FIRST_BINS if PASS <= FAR else BINS)
    sums = tl.cumsum(bins, 1)
    is_before = sums < wanted[:, None]
    digit = tl.sum(is_before.to(tl.int64), axis=1)
    before = tl.max(tl.where(is_before, sums, 0), axis=1)
    return digit, wanted - before


@triton.jit
def near_sum(home: tl.tensor, takes_part: tl.tensor) -> tl.tensor:
    """Return the sum of the near candidates of each row."""
    bins = _bins(home, takes_part, 0, FIRST_BINS)
    return tl.sum(tl.where(tl.arange(0, FIRST_BINS)[None, :] < FAR_BIN, bins, 0), axis=1)


@triton.jit
def far_sum(home: tl.tensor, takes_part: tl.tensor, RANGE: tl.constexpr) -> tl.tensor:
    """Return the sum of the far candidates of a range, or with 3 of all of them."""
    return tl.load(home + FAR_SUMS + RANGE, mask=takes_part, other=0)


@triton.jit
def wanted_of(
    top_k: tl.tensor, top_p: tl.tensor, total: tl.tensor, lane: tl.tensor, real: tl.tensor, by_weight: tl.tensor
) -> tl.tensor:
    """Return the count or the weight to be reached. total: the weight of all candidates."""
    most = tl.load(top_k + lane, mask=real, other=0)
    share = tl.load(top_p + lane, mask=real, other=1.0)
    exact = tl.maximum(share * total.to(tl.float64), 1.0)
    weight = exact.to(tl.int64)
    weight += (weight.to(tl.float64) < exact).to(tl.int64)
    return tl.where(by_weight, weight, most)


@triton.jit
def end_of(home: tl.tensor, near: tl.tensor, wanted: tl.tensor, takes_part: tl.tensor) -> tl.tensor:
    """Return a depth, int32 [LANES], before which the candidates lie that are in question."""
    digit, _ = reached(home, wanted, takes_part, NEAR)
    end = tl.full(wanted.shape, DEEPEST, tl.int32)
    end = tl.where(near + far_sum(home, takes_part, 2) >= wanted, WITHIN_40, end)
    end = tl.where(near + far_sum(home, takes_part, 1) >= wanted, WITHIN_24, end)
    end = tl.where(near + far_sum(home, takes_part, 0) >= wanted, WITHIN_16, end)
    return tl.where(near >= wanted, ((tl.minimum(digit, FAR_BIN - 1) + 1) << 20).to(tl.int32), end)


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
