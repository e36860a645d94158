"""The last filter kernel of a race: the smallest score that passes min-p, top-k and top-p.

Owns: the kernel. Never does: draw, launch. Called by: the race. `race_limits` says how a limit is found.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.target_info import is_hip

from core_kernels.triton import portable
from core_kernels.triton.sampler import candidates
from core_kernels.triton.sampler import race_limits as state
from core_kernels.triton.sampler.race_sift import Passage, amounts_of, depths_of


@triton.jit
def _add(
    rows: candidates.Logits,
    top: tl.tensor,
    heat: tl.tensor,
    own: Passage,
    digits: tl.tensor,
    PASS: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Add all candidates of the rows to the bins of a pass. digits: those found. Return the sums of far ones, [LANES]."""
    start_of_bins: tl.constexpr = (
        state.SECOND_BINS if PASS == state.SECOND else state.THIRD_BINS if PASS == state.THIRD else 0
    )
    shift: tl.constexpr = 10 if PASS == state.SECOND else 0 if PASS == state.THIRD else 20
    width: tl.constexpr = 10 if PASS >= state.SECOND else 11
    bins = own.home[:, None] + start_of_bins
    far = tl.zeros([LANES, BLOCK], tl.int64)
    longest = tl.max(tl.where(own.takes_part, own.length, 0), axis=0)
    for start in range(0, longest, BLOCK):
        depth, passes = depths_of(rows, top, heat, own, start + tl.arange(0, BLOCK))
        amount = amounts_of(depth, own)
        is_far = depth >= state.FAR_DEPTH
        if PASS == state.NEAR:
            far += tl.where(passes & is_far, amount, 0)
            passes = passes & ~is_far
        elif PASS == state.FAR:
            passes = passes & is_far & (amount > 0)
        else:
            passes = passes & ((depth >> (shift + width)) == digits.to(tl.int32)[:, None])
        tl.atomic_add(bins + ((depth >> shift) & ((1 << width) - 1)), amount, mask=passes, sem="relaxed")
    # Other threads of this program read the bins.
    portable.finish_stores()
    return tl.sum(far, axis=1)


@triton.jit
def _last_of(
    rows: candidates.Logits,
    top: tl.tensor,
    heat: tl.tensor,
    own: Passage,
    near: tl.tensor,
    wanted: tl.tensor,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Return the largest depth that passes a filter, whose near candidates are in their bins."""
    needs_far = own.takes_part & (near < wanted)
    if tl.max(needs_far.to(tl.int32), axis=0) > 0:
        far = Passage(needs_far, own.by_weight, own.last, own.home, own.kept, own.is_listed, own.length)
        _add(rows, top, heat, far, near, state.FAR, LANES, BLOCK)
    digits, wanted = state.reached(own.home, wanted, own.takes_part, state.FAR)
    _add(rows, top, heat, own, digits, state.SECOND, LANES, BLOCK)
    digit, wanted = state.reached(own.home, wanted, own.takes_part, state.SECOND)
    digits = digits * state.BINS + digit
    _add(rows, top, heat, own, digits, state.THIRD, LANES, BLOCK)
    digit, wanted = state.reached(own.home, wanted, own.takes_part, state.THIRD)
    # where the sum is not reached, the digits are beyond every depth
    return tl.where(own.takes_part, tl.minimum(digits * state.BINS + digit, own.last), own.last)


@triton.jit
def _after(
    number: tl.tensor,
    rows: candidates.Logits,
    top: tl.tensor,
    heat: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    lane: tl.tensor,
    by_count: tl.tensor,
    by_weight: tl.tensor,
    last: tl.tensor,
    base: tl.tensor,
    kept: tl.tensor,
    is_listed: tl.tensor,
    length: tl.tensor,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Return the largest depth that passes the filters up to a row's first one (number 0) or second one (1).

    base: pointer to the row's memory. The others are those of `Passage`.
    """
    is_first = (by_count | by_weight) & (number == 0)
    is_second = by_count & by_weight & (number == 1)
    takes_part = is_first | is_second
    if tl.max(takes_part.to(tl.int32), axis=0) > 0:
        home = base + number * state.SIZE
        weighs = by_weight & (is_second | ~by_count)
        # `survey` has added the candidates of the first filter; those of the second one are known only now.
        second = Passage(is_second, weighs, last, home, kept, is_listed, length)
        far = _add(rows, top, heat, second, last, state.NEAR, LANES, BLOCK) + state.far_sum(home, is_first, 3)
        near = state.near_sum(home, takes_part)
        wanted = state.wanted_of(top_k, top_p, near + far, lane, takes_part, weighs)
        own = Passage(takes_part, weighs, last, home, kept, is_listed, length)
        last = _last_of(rows, top, heat, own, near, wanted, LANES, BLOCK)
    return last


@triton.jit(do_not_specialize=candidates.STEPS)
def conclude(
    logits: tl.tensor,
    which: tl.tensor,
    words: tl.tensor,
    mask_index: tl.tensor,
    tops: tl.tensor,
    temperatures: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    least: tl.tensor,
    memory: tl.tensor,
    kept: tl.tensor,
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
    """Program (rows) writes the smallest score that passes, int32 [count].

    It reads the list of a row or, where more candidates are in question than that has room for, all of its logits.
    """
    lane, real = candidates.lanes_of(count, LANES)
    row, mask_row = candidates.rows_of(which, words, mask_index, lane, real)
    rows = candidates.Logits(logits, row, logits_stride, words, mask_row, mask_stride)
    top, heat, is_hot = candidates.heat_of(tops, temperatures, lane, real, count, PARTS)
    by_count, by_weight, last = state.filters_of(top_k, top_p, least, lane, real, is_hot)
    base = memory + lane.to(tl.int64) * (2 * state.SIZE)
    listed = tl.load(base + state.LISTED, mask=by_count | by_weight, other=0)
    is_listed = listed <= state.ROOM
    length = tl.where(is_listed, listed, vocab_size).to(tl.int32)
    places = (base, kept + lane.to(tl.int64) * state.ROOM, is_listed, length)
    if not portable.INTERPRETED and is_hip():  # a loop takes more scalar registers than there are
        for number in tl.static_range(2):
            last = _after(number, rows, top, heat, top_k, top_p, lane, by_count, by_weight, last, *places, LANES, BLOCK)
    else:  # the body twice takes more vector registers than there are
        for number in range(2):
            last = _after(number, rows, top, heat, top_k, top_p, lane, by_count, by_weight, last, *places, LANES, BLOCK)
    tl.store(out + lane, (-last).to(tl.int32), mask=real)
