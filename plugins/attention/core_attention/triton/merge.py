"""The partial results of a divided tile: stored section by section, and merged in the order of the sections.

Owns: their places, and the count that tells which program merges. Never does: read the cache.
Called by: `attend_kernel.py`.

The count decides who merges. The order of the sums is that of the sections, whoever merges.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from core_attention.triton import spans, work
from core_attention.triton.sums import Sums, empty, joined, result_of
from core_kernels.triton import portable

MERGED = tl.constexpr(16)
"""Rows that are merged together."""

AHEAD = tl.constexpr(4)
"""Sections that are read together."""


class Parts(NamedTuple):
    """Partial results of divided tiles: sums [room, heads, SLOTS, value], the others [room, heads, SLOTS]."""

    sums: tl.tensor
    maxima: tl.tensor
    weights: tl.tensor


@triton.jit
def _places_of(item: work.Item, rows: work.Rows, HEADS: tl.constexpr) -> tl.tensor:
    """Return the places of rows' first sections. The limit on the room keeps all places within 32 bits."""
    first_row = item.sequence.first_row + item.sequence.first_query
    return ((rows.row - first_row + item.room) * HEADS + rows.head) * spans.SLOTS


@triton.jit
def leave(
    parts: Parts,
    items: tl.tensor,
    nth: tl.tensor,
    number: tl.tensor,
    key: tl.tensor,
    done: tl.tensor,
    section: Sums,
    LAYER: tl.constexpr,
) -> None:
    """Store the section of a key for the rows that are done with it; rows that see none of its keys are left out."""
    item, lane, nought = work.read_again(items, nth, number, LAYER)
    rows = work.rows_of(items, item.sequence, lane, nought, LAYER.rows, LAYER)
    within = (key >> rows.section_bits) - (rows.first_key >> rows.section_bits)
    place = _places_of(item, rows, LAYER.heads) + within
    kept = done & rows.is_live & (section.weights != 0)
    tl.store(parts.maxima + place, section.maxima, mask=kept)
    tl.store(parts.weights + place, section.weights, mask=kept)
    places = place[:, None] * LAYER.value_size + lane.v_number[None, :]
    tl.store(parts.sums + places, section.sums, mask=kept[:, None] & (lane.v_number < LAYER.value_size)[None, :])


@triton.jit
def _left(parts: Parts, place: tl.tensor, present: tl.tensor, v_number: tl.tensor, VALUE: tl.constexpr) -> Sums:
    """Load a section of rows; one that is not present is empty. Other programs have stored it, so it is not read from
    the cache of this one's multiprocessor.
    """
    maxima = tl.load(parts.maxima + place, mask=present, other=float("-inf"), cache_modifier=".cg")
    weights = tl.load(parts.weights + place, mask=present, other=0.0, cache_modifier=".cg")
    places = place[:, None] * VALUE + v_number[None, :]
    inside = present[:, None] & (v_number < VALUE)[None, :]
    return Sums(maxima, weights, tl.load(parts.sums + places, mask=inside, other=0.0, cache_modifier=".cg"))


@triton.jit
def _counter_of(arrived: tl.tensor, item: work.Item, lane: work.Lane, LAYER: tl.constexpr) -> tl.tensor:
    return arrived + item.room * LAYER.lanes + lane.number


@triton.jit
def is_last(arrived: tl.tensor, items: tl.tensor, nth: tl.tensor, number: tl.tensor, LAYER: tl.constexpr) -> tl.tensor:
    """Count the keys of an item as finished, and return whether they were the last ones of its tile and lane."""
    item, lane, _ = work.read_again(items, nth, number, LAYER)
    span = work.span_of(items, item.sequence, LAYER)
    keys = item.end - item.begin
    portable.finish_stores()  # the threads of this program have stored their sections before one of them says so
    before = tl.atomic_add(_counter_of(arrived, item, lane, LAYER), keys, sem="acq_rel")
    return before + keys == span.end - span.begin


@triton.jit
def _store_output(
    total: Sums,
    rows: work.Rows,
    v_number: tl.tensor,
    out: tl.tensor,
    out_row: tl.tensor,
    out_head: tl.tensor,
    sinks: tl.tensor,
    v_scale: tl.tensor,
    LAYER: tl.constexpr,
) -> None:
    """Store the attention output of rows from their totals."""
    result = result_of(total, sinks, rows.head, v_scale, LAYER.has_sinks)
    place = rows.row.to(tl.int64) * out_row + rows.head * out_head
    inside = rows.is_live[:, None] & (v_number < LAYER.value_size)[None, :]
    portable.store(out + place[:, None] + v_number[None, :], result, inside)


@triton.jit
def finish(
    total: Sums,
    items: tl.tensor,
    nth: tl.tensor,
    number: tl.tensor,
    out: tl.tensor,
    out_row: tl.tensor,
    out_head: tl.tensor,
    sinks: tl.tensor,
    v_scale: tl.tensor,
    LAYER: tl.constexpr,
) -> None:
    """Store the output of a tile that was not divided."""
    item, lane, nought = work.read_again(items, nth, number, LAYER)
    rows = work.rows_of(items, item.sequence, lane, nought, LAYER.rows, LAYER)
    _store_output(total, rows, lane.v_number, out, out_row, out_head, sinks, v_scale, LAYER)


@triton.jit
def merge(
    parts: Parts,
    items: tl.tensor,
    nth: tl.tensor,
    number: tl.tensor,
    arrived: tl.tensor,
    out: tl.tensor,
    out_row: tl.tensor,
    out_head: tl.tensor,
    sinks: tl.tensor,
    v_scale: tl.tensor,
    LAYER: tl.constexpr,
) -> None:
    """Merge the partial results of an item's tile, and store the output."""
    item, lane, nought = work.read_again(items, nth, number, LAYER)
    sequence = item.sequence
    queries = tl.minimum(sequence.query_len - sequence.first_query, LAYER.queries)
    for first in range(nought, queries * LAYER.side, MERGED):
        rows = work.rows_of(items, sequence, lane, first, MERGED, LAYER)
        place = _places_of(item, rows, LAYER.heads)
        count = (rows.last_key >> rows.section_bits) - (rows.first_key >> rows.section_bits) + 1
        total = empty(MERGED, LAYER)
        for start in range(0, tl.max(count), AHEAD):
            for ahead in tl.static_range(AHEAD):
                present = rows.is_live & (start + ahead < count)
                part = _left(parts, place + start + ahead, present, lane.v_number, LAYER.value_size)
                total = joined(total, part)
        _store_output(total, rows, lane.v_number, out, out_row, out_head, sinks, v_scale, LAYER)
    # for the next layer, and the next replay of a recorded step
    tl.store(_counter_of(arrived, item, lane, LAYER), 0)
