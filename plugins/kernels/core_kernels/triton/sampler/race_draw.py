"""The draw kernel: the best z - ln E of each part of a row, its lowest id, and the token of the row.

Owns: the kernel. Never does: filter, launch. Called by: the race.
"""

from __future__ import annotations

import triton
import triton.language as tl

from core_kernels.triton import portable
from core_kernels.triton.sampler import candidates, noise
from core_kernels.triton.sampler.race_peak import settle

FARTHEST = tl.constexpr(-26.1)
"""No candidate with a smaller z can win: the distance exceeds the whole range of the noise."""


@triton.jit
def _better(
    best: tl.tensor, best_id: tl.tensor, scores: tl.tensor, ids: tl.tensor, takes_part: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """Update the best score of each row and its lowest id with a tile of scores."""
    scores = tl.where(takes_part, scores, float("-inf"))
    top = tl.max(scores, axis=1)
    at_top = takes_part & (scores == top[:, None])
    top_id = tl.min(tl.where(at_top, ids[None, :], candidates.NO_ID), axis=1)
    is_better = (top > best) | ((top == best) & (top_id < best_id))
    return tl.where(is_better, top, best), tl.where(is_better, top_id, best_id)


@triton.jit
def _word(keys: tl.tensor, lane: tl.tensor, real: tl.tensor, place: tl.constexpr) -> tl.tensor:
    """Load one word of each row's key and counter, uint32 [LANES, 1]. keys: int64 [rows, 5]."""
    return tl.load(keys + lane * 5 + place, mask=real, other=0).to(tl.uint32)[:, None]


@triton.jit(do_not_specialize=candidates.STEPS)
def draw(
    logits: tl.tensor,
    which: tl.tensor,
    words: tl.tensor,
    mask_index: tl.tensor,
    tops: tl.tensor,
    top_ids: tl.tensor,
    temperatures: tl.tensor,
    keys: tl.tensor,
    limit: tl.tensor,
    scores: tl.tensor,
    score_ids: tl.tensor,
    arrived: tl.tensor,
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
    """Program (rows, part) writes the best scores float32 [parts, count] and their ids int32. part_size: in groups of
    four ids. The last program of some rows to arrive, in any order, writes their tokens, int64 [count].
    """
    lane, real = candidates.lanes_of(count, LANES)
    part = tl.program_id(1)
    row, mask_row = candidates.rows_of(which, words, mask_index, lane, real)
    rows = candidates.Logits(logits, row, logits_stride, words, mask_row, mask_stride)
    top, divisor, is_hot = candidates.heat_of(tops, temperatures, lane, real, count, PARTS)
    best = tl.full([LANES], float("-inf"), tl.float32)
    best_id = tl.full([LANES], candidates.NO_ID, tl.int32)
    if tl.max(is_hot.to(tl.int32), axis=0) > 0:
        least = tl.full([LANES], candidates.NO_LIMIT, tl.int32)
        if limit is not None:
            least = tl.load(limit + lane, mask=real, other=0)
        low = _word(keys, lane, real, 0)
        high = _word(keys, lane, real, 1)
        index = _word(keys, lane, real, 2)
        choice = _word(keys, lane, real, 3)
        purpose = _word(keys, lane, real, 4)
        for start in range(part * part_size, tl.minimum((part + 1) * part_size, vocab_size), 4 * BLOCK):
            group = (start >> 2) + tl.arange(0, BLOCK)
            counter = group[None, :].to(tl.uint32) + tl.zeros([LANES, BLOCK], tl.uint32)
            of_word = noise.philox(counter, index, choice, purpose, low, high)
            for word in tl.static_range(4):
                ids = group * 4 + word
                inside = is_hot[:, None] & (ids < vocab_size)[None, :]
                logit = candidates.allowed(rows, candidates.raw_tile(rows, ids, inside), ids, inside)
                z = candidates.distance(logit, top, divisor)
                takes_part = inside & (z >= FARTHEST) & (candidates.score_of(z) >= least[:, None])
                score = z + noise.gumbel(of_word[word])
                best, best_id = _better(best, best_id, score, ids, takes_part)
    tl.store(scores + part * count + lane, best, mask=real)
    tl.store(score_ids + part * count + lane, best_id, mask=real)
    portable.finish_stores()
    is_last = tl.atomic_add(arrived + tl.program_id(0), 1, sem="acq_rel", scope="gpu") == PARTS - 1
    if is_last:
        settle(tops, top_ids, scores, score_ids, temperatures, out, lane, real, count, PARTS)
