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
MOST_PARTS = tl.constexpr(64)
"""Into which a row is divided at most."""
NO_LIMIT = tl.constexpr(-(2**31))
LOWEST_KEY = tl.constexpr(-2139095040)
"""The score of the lowest finite number."""
STEPS: Final = ("logits_stride", "vocab_size", "count", "part_size", "mask_stride")
"""Integers of the kernels that read logits."""


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
def rows_of(
    which: tl.tensor, words: tl.tensor, mask_index: tl.tensor, lane: tl.tensor, real: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """Return the index into all logits and that of the bitmask of each of the program's rows, [LANES, 1]."""
    mask_row = tl.full(lane.shape, -1, tl.int64)
    if words is not None:
        mask_row = tl.load(mask_index + lane, mask=real, other=-1)
    return tl.load(which + lane, mask=real, other=0)[:, None], mask_row[:, None]


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
def places_of(lane: tl.tensor, real: tl.tensor, count: tl.tensor, PARTS: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Return where the parts of each row lie in arrays [parts, count], and whether they exist: [MOST_PARTS, LANES].

    They are read at once: one after another, each would wait for the memory.
    """
    part = tl.arange(0, MOST_PARTS)[:, None]
    return part * count + lane[None, :], (part < PARTS) & real[None, :]


@triton.jit
def largest(tops: tl.tensor, lane: tl.tensor, real: tl.tensor, count: tl.tensor, PARTS: tl.constexpr) -> tl.tensor:
    """Return the largest logit of each row, +inf where one of its logits is not finite."""
    place, inside = places_of(lane, real, count, PARTS)
    return tl.max(tl.load(tops + place, mask=inside, other=float("-inf")), axis=0)


@triton.jit
def is_finite(top: tl.tensor) -> tl.tensor:
    """Whether a row's largest logit is finite."""
    return (top > float("-inf")) & (top < float("inf"))


@triton.jit
def heat_of(
    tops: tl.tensor, temperatures: tl.tensor, lane: tl.tensor, real: tl.tensor, count: tl.tensor, PARTS: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return each row's largest logit, its temperature, and whether chance chooses its token."""
    heat = tl.load(temperatures + lane, mask=real, other=0.0)
    top = largest(tops, lane, real, count, PARTS)
    is_hot = real & (heat > 0.0) & is_finite(top)
    return top, tl.where(is_hot, heat, 1.0), is_hot


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
