"""The filter kernels of a race: the smallest score that passes min-p, top-k and top-p.

Owns: the kernels. Never does: draw, launch. Called by: the race. `race_limits` says how a filter's passes work.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from core_kernels.triton.sampler import candidates
from core_kernels.triton.sampler import race_limits as state


class Passage(NamedTuple):
    """What the rows of a program do in a pass; all but the tile of a list [LANES].

    takes_part: whether a row does anything. last: the largest depth that passes the filters before. digits: those found.
    home: pointer to its memory. kept: pointer to its list of depths. listed: pointer to the length of this list.
    is_listed: whether the list is complete. length: of the list or of the vocabulary, whichever is read.
    """

    takes_part: tl.tensor
    last: tl.tensor
    digits: tl.tensor
    home: tl.tensor
    kept: tl.tensor
    listed: tl.tensor
    is_listed: tl.tensor
    length: tl.tensor


@triton.jit
def _depths(
    rows: candidates.Logits, top: tl.tensor, heat: tl.tensor, own: Passage, ids: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """Return the depths of a tile, int32 [LANES, BLOCK], and which of them pass the filters before."""
    inside = own.takes_part[:, None] & (ids[None, :] < own.length[:, None])
    is_listed = inside & own.is_listed[:, None]
    from_list = tl.load(own.kept[:, None] + ids[None, :], mask=is_listed, other=0)
    in_words = inside & ~is_listed
    logit = candidates.allowed(rows, candidates.raw_tile(rows, ids, in_words), ids, in_words)
    depth = tl.where(is_listed, from_list, state.depth_of(candidates.distance(logit, top, heat)))
    return depth, inside & (depth >= 0) & (depth <= own.last[:, None])


@triton.jit
def _list(own: Passage, depth: tl.tensor, passes: tl.tensor) -> None:
    """Append the depths that are still in question to the lists of their rows, in any order."""
    remains = (passes & ~own.is_listed[:, None] & ((depth >> 20) <= own.digits[:, None])).to(tl.int32)
    number = tl.sum(remains, axis=1)
    if tl.max(number, axis=0) > 0:
        first = tl.atomic_add(own.listed, number.to(tl.int64), mask=number > 0, sem="relaxed")
        place = first[:, None] + tl.cumsum(remains, 1) - 1
        tl.store(own.kept[:, None] + place, depth, mask=(remains > 0) & (place < state.ROOM))


@triton.jit
def _add(
    rows: candidates.Logits,
    top: tl.tensor,
    heat: tl.tensor,
    own: Passage,
    part_size: tl.tensor,
    BY_WEIGHT: tl.constexpr,
    PASS: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Add the candidates of a part to the bins of a pass."""
    start_of_bins: tl.constexpr = (
        state.SECOND_BINS if PASS == state.SECOND else state.THIRD_BINS if PASS == state.THIRD else 0
    )
    shift: tl.constexpr = 10 if PASS == state.SECOND else 0 if PASS == state.THIRD else 20
    width: tl.constexpr = 10 if PASS >= state.SECOND else 11
    bins = own.home[:, None] + start_of_bins
    far_sum = tl.zeros([LANES, BLOCK], tl.int64)
    amount = tl.full([LANES, BLOCK], 1, tl.int64)
    longest = tl.max(tl.where(own.takes_part, own.length, 0), axis=0)
    begin = tl.program_id(1) * part_size
    for start in range(begin, tl.minimum(begin + part_size, longest), BLOCK):
        depth, passes = _depths(rows, top, heat, own, start + tl.arange(0, BLOCK))
        if BY_WEIGHT:
            amount = state.weight_of(state.z_of(depth))
        is_far = depth >= (state.FAR_BIN << 20)
        if PASS == state.SECOND:
            _list(own, depth, passes)
        if PASS == state.NEAR:
            far_sum += tl.where(passes & is_far, amount, 0)
            passes = passes & ~is_far
        elif PASS == state.FAR:
            passes = passes & is_far & (amount > 0)
        else:
            passes = passes & ((depth >> (shift + width)) == own.digits[:, None])
        tl.atomic_add(bins + ((depth >> shift) & ((1 << width) - 1)), amount, mask=passes, sem="relaxed")
    if PASS == state.NEAR and BY_WEIGHT:
        tl.atomic_add(own.home + state.FAR_SUM, tl.sum(far_sum, axis=1), mask=own.takes_part, sem="relaxed")


@triton.jit
def _source(
    listed: tl.tensor,
    real: tl.tensor,
    by_count: tl.tensor,
    vocab_size: tl.tensor,
    BY_WEIGHT: tl.constexpr,
    PASS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return whether each row's list is read, and the length of the list or of the vocabulary.

    A list is not read by the pass that writes it, nor before: the second pass of top-k, or of top-p where it is alone.
    """
    if PASS == state.THIRD:
        reads = real
    elif BY_WEIGHT:
        reads = by_count
    else:
        reads = real & False
    length = tl.load(listed, mask=reads, other=0)
    is_listed = (length > 0) & (length <= state.ROOM)
    return is_listed, tl.where(is_listed, length, vocab_size).to(tl.int32)


@triton.jit(do_not_specialize=candidates.STEPS)
def sift(
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
    logits_stride: int,
    vocab_size: int,
    count: int,
    part_size: int,
    mask_stride: int,
    BY_WEIGHT: tl.constexpr,
    PASS: tl.constexpr,
    PARTS: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Program (rows, part) adds its candidates to bins: one pass of top-k, or by weight of top-p.

    memory: int64 [2, count, SIZE], 0 before the first pass. kept: int32 [count, ROOM].
    """
    lane, real = candidates.lanes_of(count, LANES)
    row, mask_row = candidates.rows_of(which, words, mask_index, lane, real)
    rows = candidates.Logits(logits, row, logits_stride, words, mask_row, mask_stride)
    top, heat, is_hot = candidates.heat_of(tops, temperatures, lane, real, count, PARTS)
    by_count, by_weight, last = state.filters_of(top_k, top_p, least, lane, real, is_hot)
    home = memory + lane.to(tl.int64) * state.SIZE
    listed = home + state.LISTED
    is_listed, length = _source(listed, real, by_count, vocab_size, BY_WEIGHT, PASS)
    begins = tl.program_id(1) * part_size + tl.zeros_like(lane)
    has_part = begins < length
    takes_part, limit = by_count & has_part, top_k
    if BY_WEIGHT:
        if PASS == state.NEAR:
            last = state.last_of(home, by_count & has_part, last)
        takes_part, limit = by_weight & has_part, top_p
        home = memory + (lane + count).to(tl.int64) * state.SIZE
        if PASS == state.NEAR:
            tl.store(home + state.LAST, last, mask=real & (begins == 0))
        else:
            last = tl.load(home + state.LAST, mask=real, other=0)
    digits, takes_part = state.digits_of(home, limit, lane, takes_part, BY_WEIGHT, PASS)
    if tl.max(takes_part.to(tl.int32), axis=0) > 0:
        places = (kept + lane.to(tl.int64) * state.ROOM, listed, is_listed, length)
        own = Passage(takes_part, last.to(tl.int32), digits.to(tl.int32), home, *places)
        _add(rows, top, heat, own, part_size, BY_WEIGHT, PASS, LANES, BLOCK)


@triton.jit(do_not_specialize=("count",))
def conclude(
    tops: tl.tensor,
    temperatures: tl.tensor,
    top_p: tl.tensor,
    memory: tl.tensor,
    out: tl.tensor,
    count: int,
    PARTS: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """Program (rows) writes the smallest score that passes, int32 [count]."""
    lane, real = candidates.lanes_of(count, LANES)
    _, _, is_hot = candidates.heat_of(tops, temperatures, lane, real, count, PARTS)
    share = tl.load(top_p + lane, mask=real, other=1.0)
    home = memory + (count + lane).to(tl.int64) * state.SIZE
    last = tl.load(home + state.LAST, mask=real, other=0)
    last = state.last_of(home, is_hot & (share < 1.0), last)
    tl.store(out + lane, (-last).to(tl.int32), mask=real)
