"""Helpers shared by the sampler's kernels: tiles of rows of logits, and their distance from the largest logit.

Owns: these Triton functions. Never does: choose a token, launch. Called by: the kernels of the race.

A program handles LANES rows side by side, in tiles of BLOCK ids. A score is an integer that increases with z = (logit -
largest) / T.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import triton
import triton.language as tl

from core_kernels.triton import portable

NO_ID = tl.constexpr(2**31 - 1)
NO_LIMIT = tl.constexpr(-(2**31))
LOWEST_KEY = tl.constexpr(-2139095040)
"""The score of the lowest finite number."""
STEPS: Final = ("logits_stride", "vocab_size", "count", "part_size", "mask_stride")


class Logits(NamedTuple):
    """Some rows of logits, as seen by a kernel.

    start: pointer to all logits. row [LANES, 1]: row indices. stride: from row to row.
    words: token bitmasks, or None. mask_row [LANES, 1]: index of each row's bitmask; below 0: all tokens are allowed.
    """

    start: tl.tensor
    row: tl.tensor
    stride: tl.tensor
    words: tl.tensor | None
    mask_row: tl.tensor
    mask_stride: tl.tensor


@triton.jit
def lanes_of(count: tl.tensor, LANES: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Return the rows of this program, and whether each is valid."""
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    return lane, lane < count


@triton.jit
def numbers_of(which: tl.tensor, lane: tl.tensor, real: tl.tensor) -> tl.tensor:
    """Return the index into all logits of each of the program's rows, [LANES, 1]."""
    return tl.load(which + lane, mask=real, other=0)[:, None]


@triton.jit
def mask_rows(words: tl.tensor, mask_index: tl.tensor, lane: tl.tensor, real: tl.tensor) -> tl.tensor:
    """Return the bitmask index of each of the program's rows, [LANES, 1]."""
    mask_row = tl.full(lane.shape, -1, tl.int64)
    if words is not None:
        mask_row = tl.load(mask_index + lane, mask=real, other=-1)
    return mask_row[:, None]


@triton.jit
def raw_tile(logits: Logits, ids: tl.tensor, inside: tl.tensor) -> tl.tensor:
    """Load logits [LANES, BLOCK] unchanged, -inf outside. ids: [BLOCK]."""
    place = logits.start + logits.row * logits.stride + ids[None, :]
    return tl.load(place, mask=inside, other=float("-inf"))


@triton.jit
def allowed(logits: Logits, logit: tl.tensor, ids: tl.tensor, inside: tl.tensor) -> tl.tensor:
    """Set logits [LANES, BLOCK] of tokens that are not allowed to -inf."""
    if logits.words is not None:
        masked = inside & (logits.mask_row >= 0)
        place = logits.words + logits.mask_row * logits.mask_stride + (ids[None, :] >> 5)
        word = tl.load(place, mask=masked, other=-1)
        may = ((word >> (ids[None, :] & 31)) & 1) != 0
        logit = tl.where(may, logit, float("-inf"))
    return logit


@triton.jit
def largest(tops: tl.tensor, lane: tl.tensor, real: tl.tensor, count: tl.tensor, PARTS: tl.constexpr) -> tl.tensor:
    """Return the largest logit of each row, +inf where one of its logits is not finite."""
    best = tl.load(tops + lane, mask=real, other=0.0)
    for part in range(1, PARTS):
        best = tl.maximum(best, tl.load(tops + part * count + lane, mask=real, other=0.0))
    return best


@triton.jit
def is_finite(top: tl.tensor) -> tl.tensor:
    """Whether a row's largest logit is finite."""
    return (top > float("-inf")) & (top < float("inf"))


@triton.jit
def distance(logit: tl.tensor, top: tl.tensor, heat: tl.tensor) -> tl.tensor:
    """Return z of a tile: (logit - largest) / T."""
    z = portable.div(logit - top[:, None], tl.zeros_like(logit) + heat[:, None])
    return tl.where(z == 0.0, 0.0, z)  # no negative zero


@triton.jit
def score_of(z: tl.tensor) -> tl.tensor:
    """Return an integer that increases with z: int32."""
    bits = z.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
