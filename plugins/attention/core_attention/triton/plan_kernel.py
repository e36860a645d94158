"""The kernel that lists a step's work for the attention kernel, longest items first.

Owns: the division of tiles of rows into runs of sections by their lengths. Never does: read a query or a key.
Called by: `plan.py`, once a step for all layers with the same sizes.

An item has all keys of a tile, or where these are more than a program's share of the step, a run of whole sections. The
division changes no bit, see `spans.py`. Programs begin in the order of the list, so long items begin first and short
ones fill the gaps.

CUT is a `Cut`.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from core_attention.triton import spans, work
from core_kernels.triton import portable

RANKS = tl.constexpr(4)
"""Items are ordered by length in so many ranks: from a program's share on, and by halves below."""

TILES = tl.constexpr(1024)
"""Tiles that are handled together."""


class Tiles(NamedTuple):
    """Tiles of rows [n]. sequence: fields [n]. is_live: whether the tile has rows. span: fields [n]."""

    sequence: work.Sequence
    is_live: tl.tensor
    span: work.Span


class Runs(NamedTuple):
    """The division of tiles [n]: each has `count` items of `sections` sections, and partial results from `room` on.

    rows: rows of the room that the tile wants.
    """

    count: tl.tensor
    sections: tl.tensor
    room: tl.tensor
    rows: tl.tensor


@triton.jit
def _tiles_of(
    items: tl.tensor,
    tile: tl.tensor,
    nth: tl.tensor,
    cu_seqlens: tl.tensor,
    seq_lens: tl.tensor,
    CUT: tl.constexpr,
) -> Tiles:
    """Return tiles [n] of the sequences nth [n]."""
    first_row = tl.load(cu_seqlens + nth)
    query_len = tl.load(cu_seqlens + nth + 1) - first_row
    seq_len = tl.load(seq_lens + nth)
    first_query = (tile - first_row // CUT.queries - nth) * CUT.queries
    is_live = first_query < query_len
    # a tile without rows is computed like the first row of a sequence, and not listed
    sequence = work.Sequence(
        nth,
        first_row,
        tl.where(is_live, query_len, 1),
        tl.where(is_live, seq_len, 1),
        tl.where(is_live, first_query, 0),
    )
    return Tiles(sequence, is_live, work.span_of(items, sequence, CUT))


@triton.jit
def _runs_of(tiles: Tiles, share: tl.tensor, taken: tl.tensor, room_rows: tl.tensor, CUT: tl.constexpr) -> Runs:
    """Divide tiles whose keys exceed a program's share, as far as there is room for their partial results.

    taken: rows of the room that earlier tiles take.
    """
    span = tiles.span
    sections = (span.end - 1 >> span.longest_bits) - (span.begin >> span.longest_bits) + 1
    wanted = tl.minimum(tl.cdiv(span.end - span.begin, share), sections)
    each = tl.cdiv(sections, wanted)
    count = tl.cdiv(sections, each)
    rows = tl.minimum(tiles.sequence.query_len - tiles.sequence.first_query, CUT.queries)
    rows = tl.where(tiles.is_live & (count > 1), rows, 0)
    room = taken + tl.cumsum(rows) - rows
    is_divided = (rows > 0) & (room + rows <= room_rows)
    count = tl.where(is_divided, count, 1)
    each = tl.where(is_divided, each, sections)
    return Runs(count, each, tl.where(is_divided, room, -1), rows)


@triton.jit
def _rank_of(tiles: Tiles, runs: Runs, share: tl.tensor) -> tl.tensor:
    """Return the rank of each tile's items: 0 is the longest."""
    keys = tl.minimum(runs.sections << tiles.span.longest_bits, tiles.span.end - tiles.span.begin)
    return (keys < share).to(tl.int32) + (keys < share // 2).to(tl.int32) + (keys < share // 4).to(tl.int32)


@triton.jit(do_not_specialize=["num_seqs", "num_tiles", "num_counters", "wanted", "room_rows"])
def plan(
    items: tl.tensor,
    sequences: tl.tensor,
    arrived: tl.tensor,
    cu_seqlens: tl.tensor,
    seq_lens: tl.tensor,
    num_seqs: tl.tensor,
    num_tiles: tl.tensor,
    num_counters: tl.tensor,
    wanted: tl.tensor,
    room_rows: tl.tensor,
    CUT: tl.constexpr,
) -> None:
    """Write the list, its count, and zeros to the counters arrived [num_counters]; one program.

    sequences: scratch [num_tiles]. num_tiles: limit of the tiles' indices. wanted: items among which all keys of the
    step should be divided. room_rows: rows for whose partial results there is room.
    """
    total = tl.full([], 0, tl.int64)
    for first in range(0, num_tiles, TILES):
        tile = first + tl.arange(0, TILES)
        nth = spans.sequence_of_tile(tile, cu_seqlens, num_seqs, CUT.queries)
        tl.store(sequences + tile, nth, mask=tile < num_tiles)
        tiles = _tiles_of(items, tile, nth, cu_seqlens, seq_lens, CUT)
        keys = tl.where(tiles.is_live, tiles.span.end - tiles.span.begin, 0)
        total += tl.sum(keys.to(tl.int64))
    for first in range(0, num_counters, TILES):
        counter = first + tl.arange(0, TILES)
        tl.store(arrived + counter, tl.zeros([TILES], tl.int32), mask=counter < num_counters)
    portable.finish_stores()  # the sequences are read by other threads than those that have stored them
    share = tl.maximum(tl.minimum(tl.cdiv(total, wanted.to(tl.int64)), 1 << 30), 1).to(tl.int32)

    written = 0
    for rank in range(RANKS):
        taken = 0
        for first in range(0, num_tiles, TILES):
            tile = first + tl.arange(0, TILES)
            nth = tl.load(sequences + tile, mask=tile < num_tiles, other=0)
            tiles = _tiles_of(items, tile, nth, cu_seqlens, seq_lens, CUT)
            is_live = tiles.is_live & (tile < num_tiles)
            runs = _runs_of(tiles, share, taken, room_rows, CUT)
            taken += tl.sum(runs.rows)
            count = tl.where(is_live & (_rank_of(tiles, runs, share) == rank), runs.count, 0)
            place = written + tl.cumsum(count) - count
            first_section = tiles.span.begin >> tiles.span.longest_bits
            for run in range(0, tl.max(count)):
                start = first_section + run * runs.sections
                begin = tl.maximum(tiles.span.begin, start << tiles.span.longest_bits)
                end = tl.minimum(tiles.span.end, (start + runs.sections) << tiles.span.longest_bits)
                item = work.Item(tiles.sequence, begin, end, runs.room)
                work.write_items(items, place + run, item, run < count)
            written += tl.sum(count)
    tl.store(items, written)
