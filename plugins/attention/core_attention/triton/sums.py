"""What the softmax of a program's rows holds while it goes on over their keys.

Owns: sums of a section, how sections are joined, and where they are left. Never does: look at a key.
Called by: `attend_kernel.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from core_attention.triton import spans

LOG2E = tl.constexpr(1.4426950408889634)


class Parts(NamedTuple):
    """Where a divided step leaves sections for `merge`: sums [T, heads, SLOTS, value], the others [T, heads, SLOTS]."""

    sums: tl.tensor
    maxima: tl.tensor
    weights: tl.tensor


class Sums(NamedTuple):
    """What the softmax of rows holds: maxima and weights [ROWS], sums of values [ROWS, VALUE_TILE]."""

    maxima: tl.tensor
    weights: tl.tensor
    sums: tl.tensor


@triton.jit
def empty(LAYER: tl.constexpr) -> Sums:
    """Of no key."""
    maxima = tl.full([LAYER.rows], float("-inf"), tl.float32)
    weights = tl.full([LAYER.rows], 0.0, tl.float32)
    return Sums(maxima, weights, tl.full([LAYER.rows, LAYER.value_tile], 0.0, tl.float32))


@triton.jit
def joined(total: Sums, section: Sums) -> Sums:
    """The totals of rows with their next section."""
    common = tl.maximum(total.maxima, section.maxima)
    old = spans.weight(total.maxima, common)
    new = spans.weight(section.maxima, common)
    weights = spans.merged(total.weights, old, section.weights, new)
    sums = spans.merged(total.sums, old[:, None], section.sums, new[:, None])
    return Sums(common, weights, sums)


@triton.jit
def continued(section: Sums, done: tl.tensor) -> Sums:
    """The sections of rows behind a tile of keys: those that are done begin anew. done: [ROWS]."""
    maxima = tl.where(done, float("-inf"), section.maxima)
    weights = tl.where(done, 0.0, section.weights)
    return Sums(maxima, weights, tl.where(done[:, None], 0.0, section.sums))


@triton.jit
def leave(
    parts: Parts, place: tl.tensor, kept: tl.tensor, section: Sums, v_number: tl.tensor, VALUE: tl.constexpr
) -> None:
    """Store a section of the rows that are kept, for `merge`."""
    tl.store(parts.maxima + place, section.maxima, mask=kept)
    tl.store(parts.weights + place, section.weights, mask=kept)
    places = place[:, None] * VALUE + v_number[None, :]
    inside = kept[:, None] & (v_number < VALUE)[None, :]
    tl.store(parts.sums + places, section.sums, mask=inside)


@triton.jit
def result_of(total: Sums, sinks: tl.tensor, head: tl.tensor, v_scale: tl.tensor, HAS_SINKS: tl.constexpr) -> tl.tensor:
    """The totals of rows as they are told, behind the sinks of their heads."""
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
