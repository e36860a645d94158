"""Running state of the softmax for a program's rows.

Owns: the sums of a section, and their merge. Never does: read a key.
Called by: `attend_kernel.py`, `merge.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from core_attention.triton import spans

LOG2E = tl.constexpr(1.4426950408889634)


class Sums(NamedTuple):
    """Softmax state of rows: maxima and weights [ROWS], sums of values [ROWS, VALUE_TILE]."""

    maxima: tl.tensor
    weights: tl.tensor
    sums: tl.tensor


@triton.jit
def empty(ROWS: tl.constexpr, LAYER: tl.constexpr) -> Sums:
    """Return the state of rows before any key."""
    maxima = tl.full([ROWS], float("-inf"), tl.float32)
    weights = tl.full([ROWS], 0.0, tl.float32)
    return Sums(maxima, weights, tl.full([ROWS, LAYER.value_tile], 0.0, tl.float32))


@triton.jit
def joined(total: Sums, section: Sums) -> Sums:
    """Merge the next section into the totals of rows."""
    common = tl.maximum(total.maxima, section.maxima)
    old = spans.weight(total.maxima, common)
    new = spans.weight(section.maxima, common)
    weights = spans.merged(total.weights, old, section.weights, new)
    sums = spans.merged(total.sums, old[:, None], section.sums, new[:, None])
    return Sums(common, weights, sums)


@triton.jit
def ended(section: Sums, done: tl.tensor) -> Sums:
    """Return the sections of rows that are complete after a tile of keys, and empty ones of the others. done: [ROWS]."""
    return Sums(tl.where(done, section.maxima, float("-inf")), section.weights, section.sums)


@triton.jit
def continued(section: Sums, done: tl.tensor) -> Sums:
    """Reset the sections of rows that are complete after a tile of keys. done: [ROWS]."""
    maxima = tl.where(done, float("-inf"), section.maxima)
    weights = tl.where(done, 0.0, section.weights)
    return Sums(maxima, weights, tl.where(done[:, None], 0.0, section.sums))


@triton.jit
def result_of(total: Sums, sinks: tl.tensor, head: tl.tensor, v_scale: tl.tensor, HAS_SINKS: tl.constexpr) -> tl.tensor:
    """Return the outputs of rows from their totals, with the sinks of their heads applied."""
    weights = total.weights
    sums = total.sums
    if HAS_SINKS:
        sink = tl.load(sinks + head) * LOG2E
        common = tl.maximum(total.maxima, sink)
        old = spans.weight(total.maxima, common)
        new = spans.weight(sink, common)
        weights = spans.merged(weights, old, 1.0, new)
        sums = sums * old[:, None]
    return sums / weights[:, None] * v_scale
