"""The rows and keys that an attention program handles.

Owns: their computation from the program's index. Never does: read a query or a key. Called by: `attend_kernel.py`,
`operands.py`.

LAYER is an `Attended`.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from core_attention.triton import spans


class Sequence(NamedTuple):
    """The sequence of a tile of rows.

    nth: index in the step. first_row, query_len: its rows in the step. seq_len: its length including these rows.
    first_query: the tile's first row, counted within the sequence's rows.
    """

    nth: tl.tensor
    first_row: tl.tensor
    query_len: tl.tensor
    seq_len: tl.tensor
    first_query: tl.tensor


class Rows(NamedTuple):
    """The rows of a program, each [ROWS].

    row, head: of the queries. is_live: whether the lane holds a row. position: in its sequence. first_key: the first
        key that it sees.
    section: keys in each of its sections.
    """

    row: tl.tensor
    head: tl.tensor
    is_live: tl.tensor
    position: tl.tensor
    first_key: tl.tensor
    section: tl.tensor


class Span(NamedTuple):
    """The keys of a program, from `begin` to `end`; the rows of its tile see keys from `lowest` to `last`.

    shortest: keys in the shortest section of its rows.
    """

    lowest: tl.tensor
    last: tl.tensor
    shortest: tl.tensor
    begin: tl.tensor
    end: tl.tensor


@triton.jit
def sequence_of(
    tile: tl.tensor, cu_seqlens: tl.tensor, seq_lens: tl.tensor, num_seqs: tl.tensor, LAYER: tl.constexpr
) -> Sequence:
    """Return the sequence of a tile; the tile may have no rows."""
    nth = spans.sequence_of_tile(tile, cu_seqlens, num_seqs, LAYER.queries)
    first_row = tl.load(cu_seqlens + nth)
    query_len = tl.load(cu_seqlens + nth + 1) - first_row
    seq_len = tl.load(seq_lens + nth)
    first_query = (tile - first_row // LAYER.queries - nth) * LAYER.queries
    return Sequence(nth, first_row, query_len, seq_len, first_query)


@triton.jit
def lane_of(lane: tl.tensor, LAYER: tl.constexpr) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return a program's part of the value, its side of the key-value head's group, and its head; see `Attended.lanes`."""
    value_tile = lane % LAYER.value_tiles
    side = lane // LAYER.value_tiles % LAYER.sides
    kv_head = lane // LAYER.value_tiles // LAYER.sides
    return value_tile, side, kv_head


@triton.jit
def rows_of(sequence: Sequence, kv_head: tl.tensor, side: tl.tensor, LAYER: tl.constexpr) -> Rows:
    """Return the rows of a tile. side: index among the tiles that share the heads of a key-value head."""
    number = tl.arange(0, LAYER.rows)
    query = sequence.first_query + number // LAYER.side
    in_group = side * LAYER.side + number % LAYER.side
    is_live = (query < sequence.query_len) & (number < LAYER.queries * LAYER.side) & (in_group < LAYER.group)
    query = tl.minimum(query, sequence.query_len - 1)
    row = (sequence.first_row + query).to(tl.int64)
    head = kv_head * LAYER.group + tl.minimum(in_group, LAYER.group - 1)
    position = sequence.seq_len - sequence.query_len + query
    first_key = spans.first_key(position, LAYER.window, LAYER.is_chunked)
    section = spans.section_length(position, LAYER.window)
    return Rows(row, head, is_live, position, first_key, section)


@triton.jit
def span_of(sequence: Sequence, LAYER: tl.constexpr, SPLIT: tl.constexpr) -> Span:
    """Return all keys of a tile, or with SPLIT a run of whole sections, which may be empty."""
    first_position = sequence.seq_len - sequence.query_len + sequence.first_query
    last = tl.minimum(first_position + LAYER.queries, sequence.seq_len) - 1
    lowest = spans.first_key(first_position, LAYER.window, LAYER.is_chunked)
    shortest = spans.section_length(first_position, LAYER.window)
    begin = lowest // LAYER.keys * LAYER.keys
    end = last + 1
    if SPLIT:
        longest = spans.section_length(last, LAYER.window)
        first_section = lowest // longest
        sections = tl.cdiv(end, longest) - first_section
        share = tl.cdiv(sections, tl.num_programs(2))
        own = first_section + tl.program_id(2) * share
        begin = tl.maximum(begin, own * longest)
        end = tl.minimum(end, (own + share) * longest)
    return Span(lowest, last, shortest, begin, end)
