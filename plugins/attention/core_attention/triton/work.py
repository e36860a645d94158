"""The rows and keys that an attention program handles.

Owns: an item of the step's list, as it is written and read; the computation of rows and keys from it. Never does: read
a query or a key, or choose how keys are divided (`plan_kernel.py` does). Called by: the kernels, `operands.py`.

LAYER is an `Attended`, or a `Cut` where only the sizes of a tile and the window matter.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from core_attention.triton import spans

FIELDS = tl.constexpr(8)
"""Numbers of an item. The list's first item holds the count of the others and, for steps with spans, where the column
`BatchView.sees_to` begins after the list.
"""


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


class Item(NamedTuple):
    """Some keys of a tile of rows: one program for each lane handles them.

    begin, end: the keys: all of the tile, or a run of whole sections.
    room: place of the tile's first row among the partial results; negative if the item has all keys of the tile.
    """

    sequence: Sequence
    begin: tl.tensor
    end: tl.tensor
    room: tl.tensor


class Lane(NamedTuple):
    """The heads and values of a program.

    number: index among the lanes. kv_head: the key-value head. side: index among the tiles that share its heads.
    v_number: the elements of values [VALUE_TILE].
    """

    number: tl.tensor
    kv_head: tl.tensor
    side: tl.tensor
    v_number: tl.tensor


class Rows(NamedTuple):
    """The rows of a program, each [ROWS].

    row, head: of the queries. is_live: whether the lane holds a row. position: in its sequence. first_key, last_key:
        the first and the last key that it sees.
    section_bits: log2 of the keys in each of its sections.
    """

    row: tl.tensor
    head: tl.tensor
    is_live: tl.tensor
    position: tl.tensor
    first_key: tl.tensor
    last_key: tl.tensor
    section_bits: tl.tensor


class Span(NamedTuple):
    """The keys of a tile, from `begin` to `end`; its rows see keys from `lowest` to `last`.

    shortest_bits, longest_bits: log2 of the keys in the shortest and the longest sections of its rows, or bounds of them.
    """

    lowest: tl.tensor
    last: tl.tensor
    shortest_bits: tl.tensor
    longest_bits: tl.tensor
    begin: tl.tensor
    end: tl.tensor


@triton.jit
def read_item(items: tl.tensor, nth: tl.tensor) -> Item:
    """Return an item of the list."""
    place = items + (1 + nth) * FIELDS
    sequence = Sequence(tl.load(place), tl.load(place + 1), tl.load(place + 2), tl.load(place + 3), tl.load(place + 4))
    return Item(sequence, tl.load(place + 5), tl.load(place + 6), tl.load(place + 7))


@triton.jit
def write_items(items: tl.tensor, nth: tl.tensor, item: Item, mask: tl.tensor) -> None:
    """Write items [n] at the places nth [n] of the list."""
    place = items + (1 + nth) * FIELDS
    tl.store(place, item.sequence.nth, mask=mask)
    tl.store(place + 1, item.sequence.first_row, mask=mask)
    tl.store(place + 2, item.sequence.query_len, mask=mask)
    tl.store(place + 3, item.sequence.seq_len, mask=mask)
    tl.store(place + 4, item.sequence.first_query, mask=mask)
    tl.store(place + 5, item.begin, mask=mask)
    tl.store(place + 6, item.end, mask=mask)
    tl.store(place + 7, item.room, mask=mask)


@triton.jit
def lane_of(number: tl.tensor, LAYER: tl.constexpr) -> Lane:
    """Return a lane; see `Attended.lanes`."""
    first_value = number % LAYER.value_tiles * LAYER.value_tile
    side = number // LAYER.value_tiles % LAYER.sides
    kv_head = number // LAYER.value_tiles // LAYER.sides
    return Lane(number, kv_head, side, first_value + tl.arange(0, LAYER.value_tile))


@triton.jit
def read_again(
    items: tl.tensor, nth: tl.tensor, number: tl.tensor, LAYER: tl.constexpr
) -> tuple[Item, Lane, tl.tensor]:
    """Return an item of the list, a lane, and 0, anew: the compiler cannot know that they are those of before.

    What is computed from them needs no registers while keys are read.
    """
    item = read_item(items, nth)
    nought = tl.minimum(item.room + 1, 0)
    return item, lane_of(number + nought, LAYER), nought


@triton.jit
def sees_to(items: tl.tensor, row: tl.tensor) -> tl.tensor:
    """Return the last key that rows of a step with spans see."""
    return tl.load(items + tl.load(items + 1) + row)


@triton.jit
def rows_of(
    items: tl.tensor, sequence: Sequence, lane: Lane, first: tl.tensor, ROWS: tl.constexpr, LAYER: tl.constexpr
) -> Rows:
    """Return ROWS rows of a tile, from `first` on."""
    number = first + tl.arange(0, ROWS)
    query = sequence.first_query + number // LAYER.side
    in_group = lane.side * LAYER.side + number % LAYER.side
    is_live = (query < sequence.query_len) & (number < LAYER.queries * LAYER.side) & (in_group < LAYER.group)
    query = tl.minimum(query, sequence.query_len - 1)
    row = sequence.first_row + query
    head = lane.kv_head * LAYER.group + tl.minimum(in_group, LAYER.group - 1)
    position = sequence.seq_len - sequence.query_len + query
    first_key = spans.first_key(position, LAYER.window, LAYER.is_chunked)
    if LAYER.has_spans:
        last_key = sees_to(items, row)
        section_bits = spans.bits_of(last_key + 1 - first_key)
    else:
        last_key = position
        section_bits = spans.section_bits(position, LAYER.window)
    return Rows(row, head, is_live, position, first_key, last_key, section_bits)


@triton.jit
def span_of(items: tl.tensor, sequence: Sequence, LAYER: tl.constexpr) -> Span:
    """Return the keys of a tile, or of tiles [n]."""
    first_position = sequence.seq_len - sequence.query_len + sequence.first_query
    last = tl.minimum(first_position + LAYER.queries, sequence.seq_len) - 1
    lowest = spans.first_key(first_position, LAYER.window, LAYER.is_chunked)
    shortest_bits = spans.section_bits(first_position, LAYER.window)
    if LAYER.has_spans:
        row = sequence.first_row + tl.minimum(sequence.first_query + LAYER.queries, sequence.query_len) - 1
        last = sees_to(items, row)
        longest_bits = spans.bits_of(last + 1 - lowest)
    else:
        longest_bits = spans.section_bits(last, LAYER.window)
    return Span(lowest, last, shortest_bits, longest_bits, lowest // LAYER.keys * LAYER.keys, last + 1)
