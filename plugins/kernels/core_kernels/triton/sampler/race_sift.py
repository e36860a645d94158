"""The kernels that sift a race's candidates: which of them are still in question after the first look at all logits.

Owns: both kernels. Never does: find a limit (`race_conclude` does), launch. Called by: the race. `race_limits` says how a
limit is found.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from core_kernels.triton.sampler import candidates
from core_kernels.triton.sampler import race_limits as state


class Passage(NamedTuple):
    """What the rows of a program do with their candidates; all but the pointer to logits [LANES].

    takes_part: whether a row does anything. by_weight: whether it adds up weights, not candidates.
    last: the largest depth that passes the filters before. home: pointer to its memory.
    kept: pointer to its list of depths; None where none is read. is_listed: whether the list is complete.
    length: of the list or of the vocabulary, whichever is read.
    """

    takes_part: tl.tensor
    by_weight: tl.tensor
    last: tl.tensor
    home: tl.tensor
    kept: tl.tensor | None
    is_listed: tl.tensor
    length: tl.tensor


@triton.jit
def depths_of(
    rows: candidates.Logits, top: tl.tensor, heat: tl.tensor, own: Passage, ids: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """Return the depths of a tile, int32 [LANES, BLOCK], and which of them pass the filters before."""
    inside = own.takes_part[:, None] & (ids[None, :] < own.length[:, None])
    in_words = inside & ~own.is_listed[:, None]
    logit = candidates.allowed(rows, candidates.raw_tile(rows, ids, in_words), ids, in_words)
    depth = state.depth_of(candidates.distance(logit, top, heat))
    if own.kept is not None:
        is_listed = inside & own.is_listed[:, None]
        from_list = tl.load(own.kept[:, None] + ids[None, :], mask=is_listed, other=0)
        depth = tl.where(is_listed, from_list, depth)
    return depth, inside & (depth >= 0) & (depth <= own.last[:, None])


@triton.jit
def amounts_of(depth: tl.tensor, own: Passage) -> tl.tensor:
    """Return what each candidate adds to a sum: 1, or its weight; int64 [LANES, BLOCK]."""
    # No branch leaves the weights out for rows that count: LLVM cannot translate it for gfx942.
    return tl.where(own.by_weight[:, None], state.weight_of(state.z_of(depth)), 1)


@triton.jit
def _first_filter(
    top_k: tl.tensor,
    top_p: tl.tensor,
    least: tl.tensor,
    memory: tl.tensor,
    lane: tl.tensor,
    real: tl.tensor,
    is_hot: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Return of each row's first filter whether there is one, whether it is by weight, the depth that passes min-p, and
    its memory.
    """
    by_count, by_weight, last = state.filters_of(top_k, top_p, least, lane, real, is_hot)
    takes_part = by_count | by_weight
    home = memory + lane.to(tl.int64) * (2 * state.SIZE)
    # The depth of a row without filters does not fit into 32 bits; it is not used.
    return takes_part, by_weight & ~by_count, last.to(tl.int32), home


@triton.jit(do_not_specialize=candidates.STEPS)
def survey(
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
    PARTS: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Program (rows, part) adds its near candidates to the bins of the first digit, and its far ones to sums by range.

    memory: int64 [count, 2 * SIZE], 0 before. kept: of the kernels after this one.
    """
    lane, real = candidates.lanes_of(count, LANES)
    row, mask_row = candidates.rows_of(which, words, mask_index, lane, real)
    rows = candidates.Logits(logits, row, logits_stride, words, mask_row, mask_stride)
    top, heat, is_hot = candidates.heat_of(tops, temperatures, lane, real, count, PARTS)
    takes_part, by_weight, last, home = _first_filter(top_k, top_p, least, memory, lane, real, is_hot)
    own = Passage(takes_part, by_weight, last, home, None, takes_part & False, tl.zeros_like(lane) + vocab_size)
    if tl.max(own.takes_part.to(tl.int32), axis=0) > 0:
        within_16 = tl.zeros([LANES, BLOCK], tl.int64)
        within_24 = tl.zeros([LANES, BLOCK], tl.int64)
        within_40 = tl.zeros([LANES, BLOCK], tl.int64)
        total = tl.zeros([LANES, BLOCK], tl.int64)
        begin = tl.program_id(1) * part_size
        for start in range(begin, tl.minimum(begin + part_size, vocab_size), BLOCK):
            depth, passes = depths_of(rows, top, heat, own, start + tl.arange(0, BLOCK))
            amount = amounts_of(depth, own)
            is_near = passes & (depth < state.FAR_DEPTH)
            far = tl.where(passes & ~is_near, amount, 0)
            within_16 += tl.where(depth < state.WITHIN_16, far, 0)
            within_24 += tl.where(depth < state.WITHIN_24, far, 0)
            within_40 += tl.where(depth < state.WITHIN_40, far, 0)
            total += far
            tl.atomic_add(own.home[:, None] + (depth >> 20), amount, mask=is_near, sem="relaxed")
        sums = own.home + state.FAR_SUMS
        tl.atomic_add(sums, tl.sum(within_16, axis=1), mask=own.takes_part, sem="relaxed")
        tl.atomic_add(sums + 1, tl.sum(within_24, axis=1), mask=own.takes_part, sem="relaxed")
        tl.atomic_add(sums + 2, tl.sum(within_40, axis=1), mask=own.takes_part, sem="relaxed")
        tl.atomic_add(sums + 3, tl.sum(total, axis=1), mask=own.takes_part, sem="relaxed")


@triton.jit(do_not_specialize=candidates.STEPS)
def gather(
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
    PARTS: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Program (rows, part) appends the depths of its candidates in question to the lists of their rows, in any order.

    kept: int32 [count, ROOM].
    """
    lane, real = candidates.lanes_of(count, LANES)
    row, mask_row = candidates.rows_of(which, words, mask_index, lane, real)
    rows = candidates.Logits(logits, row, logits_stride, words, mask_row, mask_stride)
    top, heat, is_hot = candidates.heat_of(tops, temperatures, lane, real, count, PARTS)
    takes_part, by_weight, last, home = _first_filter(top_k, top_p, least, memory, lane, real, is_hot)
    own = Passage(takes_part, by_weight, last, home, None, takes_part & False, tl.zeros_like(lane) + vocab_size)
    if tl.max(own.takes_part.to(tl.int32), axis=0) > 0:
        near = state.near_sum(own.home, own.takes_part)
        total = near + state.far_sum(own.home, own.takes_part, 3)
        wanted = state.wanted_of(top_k, top_p, total, lane, own.takes_part, own.by_weight)
        end = state.end_of(own.home, near, wanted, own.takes_part)
        to = kept + lane.to(tl.int64) * state.ROOM
        begin = tl.program_id(1) * part_size
        for start in range(begin, tl.minimum(begin + part_size, vocab_size), BLOCK):
            depth, passes = depths_of(rows, top, heat, own, start + tl.arange(0, BLOCK))
            remains = (passes & (depth < end[:, None])).to(tl.int32)
            number = tl.sum(remains, axis=1)
            if tl.max(number, axis=0) > 0:
                listed = own.home + state.LISTED
                first = tl.atomic_add(listed, number.to(tl.int64), mask=number > 0, sem="relaxed")
                place = first[:, None] + tl.cumsum(remains, 1) - 1
                tl.store(to[:, None] + place, depth, mask=(remains > 0) & (place < state.ROOM))
