"""The first and last steps of a race: the largest logit of each part of a row, and the winner among all parts.

Owns: the first kernel, and what the last program of the last one does. Never does: noise, filters, launch. Called by:
the race, the draw.
"""

from __future__ import annotations

import triton
import triton.language as tl

from core_kernels.triton.sampler import candidates

CLEARED = tl.constexpr(1024)
"""Numbers that a program clears at once."""


# The others are multiples of 16 for most models: their logits are read 16 bytes at a time.
@triton.jit(do_not_specialize=("count", "mask_stride"))
def peak(
    logits: tl.tensor,
    which: tl.tensor,
    words: tl.tensor,
    mask_index: tl.tensor,
    tops: tl.tensor,
    top_ids: tl.tensor,
    arrived: tl.tensor,
    memory: tl.tensor,
    logits_stride: int,
    vocab_size: int,
    count: int,
    part_size: int,
    mask_stride: int,
    PARTS: tl.constexpr,
    CLEARS: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Program (rows, part) writes float32 tops [parts, count], +inf where a logit is not finite, and top_ids int32.

    It also clears what the kernels after it count in: arrived, int32, one for each LANES rows; and `memory`, int64
    [count, CLEARS], which is absent without filters.
    """
    lane, real = candidates.lanes_of(count, LANES)
    part = tl.program_id(1)
    if part == 0:
        tl.store(arrived + tl.program_id(0), 0)
    if memory is not None:
        for first in range(part * CLEARED, CLEARS, PARTS * CLEARED):
            at = first + tl.arange(0, CLEARED)
            place = memory + lane.to(tl.int64)[:, None] * CLEARS + at[None, :]
            tl.store(place, tl.zeros([LANES, CLEARED], tl.int64), mask=real[:, None] & (at < CLEARS)[None, :])
    row, mask_row = candidates.rows_of(which, words, mask_index, lane, real)
    rows = candidates.Logits(logits, row, logits_stride, words, mask_row, mask_stride)
    best = tl.full([LANES], float("-inf"), tl.float32)
    best_id = tl.full([LANES], candidates.NO_ID, tl.int32)
    is_bad = tl.zeros([LANES], tl.int32)
    for start in range(part * part_size, tl.minimum((part + 1) * part_size, vocab_size), BLOCK):
        ids = start + tl.arange(0, BLOCK)
        inside = real[:, None] & (ids < vocab_size)[None, :]
        logit = candidates.raw_tile(rows, ids, inside)
        odd = (logit != logit) | (logit == float("inf"))
        is_bad = tl.maximum(is_bad, tl.max(odd.to(tl.int32), axis=1))
        logit = tl.where(odd, float("-inf"), candidates.allowed(rows, logit, ids, inside))
        top = tl.max(logit, axis=1)
        at_top = (logit == top[:, None]) & inside
        top_id = tl.min(tl.where(at_top, ids[None, :], candidates.NO_ID), axis=1)
        best_id = tl.where(top > best, top_id, best_id)
        best = tl.maximum(best, top)
    best = tl.where(is_bad > 0, float("inf"), best)
    tl.store(tops + part * count + lane, best, mask=real)
    tl.store(top_ids + part * count + lane, best_id, mask=real)


@triton.jit
def settle(
    tops: tl.tensor,
    top_ids: tl.tensor,
    scores: tl.tensor,
    score_ids: tl.tensor,
    temperatures: tl.tensor,
    out: tl.tensor,
    lane: tl.tensor,
    real: tl.tensor,
    count: tl.tensor,
    PARTS: tl.constexpr,
) -> None:
    """Write the tokens of a program's rows, int64 [count]; -1 where there is none."""
    heat = tl.load(temperatures + lane, mask=real, other=0.0)
    is_sound = candidates.is_finite(candidates.largest(tops, lane, real, count, PARTS))
    place, inside = candidates.places_of(lane, real, count, PARTS)
    is_hot = inside & (heat > 0.0)[None, :]
    is_cold = inside & ~is_hot
    # Other programs have written the scores, of which the cache of this one's processor may not know.
    hot_score = tl.load(scores + place, mask=is_hot, other=float("-inf"), cache_modifier=".cg")
    score = tl.where(is_hot, hot_score, tl.load(tops + place, mask=is_cold, other=float("-inf")))
    hot_id = tl.load(score_ids + place, mask=is_hot, other=candidates.NO_ID, cache_modifier=".cg")
    token = tl.where(is_hot, hot_id, tl.load(top_ids + place, mask=is_cold, other=candidates.NO_ID))
    # ids rise from part to part: of equals, the lowest id wins
    is_best = score == tl.max(score, axis=0)[None, :]
    best_id = tl.min(tl.where(is_best, token, candidates.NO_ID), axis=0)
    tl.store(out + lane, tl.where(is_sound, best_id, -1).to(tl.int64), mask=real)
