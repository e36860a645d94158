"""The kernel that attends: tiles of rows over the keys of their sequence, for every kind of paged layer.

Owns: the keys of one program, and its sums. Never does: load an operand (`operands.py` does), or write the cache.
Called by: `launch.py`.

A program has some rows of one sequence, with heads that share a key-value head side by side. Decode, drafts, chunks and
prompts take tiles of the same shape, so a row meets the same instructions wherever it stands. Latent layers are layers with
one key-value head, whose values are the first numbers of its keys.
"""

from __future__ import annotations

import triton
import triton.language as tl

from core_plugins.attention.triton import cells, operands, spans
from core_plugins.kernels.triton import portable

LOG2E = tl.constexpr(1.4426950408889634)
VARYING = ["num_seqs", "table_stride", "tail_depth"]
"""Numbers that change from step to step: no kernel is compiled for one of them."""


@triton.jit
def _joined(
    total_maxima: tl.tensor,
    total_weights: tl.tensor,
    totals: tl.tensor,
    maxima: tl.tensor,
    weights: tl.tensor,
    sums: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The totals of rows with their next section."""
    common = tl.maximum(total_maxima, maxima)
    old = spans.weight(total_maxima, common)
    new = spans.weight(maxima, common)
    joined_weights = spans.merged(total_weights, old, weights, new)
    joined = spans.merged(totals, old[:, None], sums, new[:, None])
    return common, joined_weights, joined


@triton.jit
def _leave(
    part_maxima: tl.tensor,
    part_weights: tl.tensor,
    part_sums: tl.tensor,
    place: tl.tensor,
    kept: tl.tensor,
    maxima: tl.tensor,
    weights: tl.tensor,
    sums: tl.tensor,
    v_number: tl.tensor,
    VALUE: tl.constexpr,
) -> None:
    """Store a section of the rows that are kept, for `merge`."""
    tl.store(part_maxima + place, maxima, mask=kept)
    tl.store(part_weights + place, weights, mask=kept)
    places = place[:, None] * VALUE + v_number[None, :]
    inside = kept[:, None] & (v_number < VALUE)[None, :]
    tl.store(part_sums + places, sums, mask=inside)


@triton.jit
def _own_keys(
    lowest: tl.tensor, last_position: tl.tensor, KEYS: tl.constexpr, WINDOW: tl.constexpr, SPLIT: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Where the keys of a program begin and end: all of its tile, from `lowest` on, or a run of whole sections."""
    begin = lowest // KEYS * KEYS
    end = last_position + 1
    if SPLIT:
        longest = spans.section_length(last_position, WINDOW)
        first_section = lowest // longest
        sections = tl.cdiv(end, longest) - first_section
        share = tl.cdiv(sections, tl.num_programs(2))
        own = first_section + tl.program_id(2) * share
        begin = tl.maximum(begin, own * longest)
        end = tl.minimum(end, (own + share) * longest)
    return begin, end


@triton.jit
def _result(
    maxima: tl.tensor,
    weights: tl.tensor,
    sums: tl.tensor,
    sinks: tl.tensor,
    head: tl.tensor,
    v_scale: tl.tensor,
    HAS_SINKS: tl.constexpr,
) -> tl.tensor:
    """The totals of rows as they are told, behind the sinks of their heads."""
    if HAS_SINKS:
        sink = tl.load(sinks + head) * LOG2E
        common = tl.maximum(maxima, sink)
        old = spans.weight(maxima, common)
        new = spans.weight(sink, common)
        weights = spans.merged(weights, old, 1.0, new)
        sums = sums * old[:, None]
    return sums / weights[:, None] * v_scale


@triton.jit(do_not_specialize=VARYING)
def attend(  # noqa: PLR0915
    q: tl.tensor,
    q_rest: tl.tensor,
    out: tl.tensor,
    cache: tl.tensor,
    scales: tl.tensor,
    cu_seqlens: tl.tensor,
    seq_lens: tl.tensor,
    tables: tl.tensor,
    tails: tl.tensor,
    sinks: tl.tensor,
    slopes: tl.tensor,
    part_sums: tl.tensor,
    part_maxima: tl.tensor,
    part_weights: tl.tensor,
    num_seqs: tl.tensor,
    table_stride: tl.tensor,
    tail_depth: tl.tensor,
    q_row: tl.tensor,
    q_head: tl.tensor,
    rest_row: tl.tensor,
    rest_head: tl.tensor,
    out_row: tl.tensor,
    out_head: tl.tensor,
    score_scale: tl.tensor,
    cap_scale: tl.tensor,
    v_scale: tl.tensor,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    SIDE: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    REST: tl.constexpr,
    REST_PADDED: tl.constexpr,
    VALUE: tl.constexpr,
    VALUE_TILE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    K_HEAD: tl.constexpr,
    K_TOKEN: tl.constexpr,
    V_BASE: tl.constexpr,
    V_HEAD: tl.constexpr,
    V_TOKEN: tl.constexpr,
    SCALE_STRIDE: tl.constexpr,
    SCALE_BASE: tl.constexpr,
    SCALE_VALUES: tl.constexpr,
    ELEMENT: tl.constexpr,
    SCALED: tl.constexpr,
    NATIVE: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_SLOPES: tl.constexpr,
    HAS_TAILS: tl.constexpr,
    SPLIT: tl.constexpr,
    SLOTS: tl.constexpr,
    PRODUCT: tl.constexpr,
    VALUE_PRODUCT: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
) -> None:
    """One tile of rows, some heads of one key-value head, VALUE_TILE numbers of the values, some sections.

    HEADS: all of the queries'. GROUP: those of a key-value head. SIDE: those of a tile.
    SIZE, REST: numbers of a key in its two parts (each padded to a power of 2); REST 0: one part.
    VALUE: numbers of a value. BLOCK_STRIDE to SCALE_VALUES: places in a block, see `layout.py`.
    SPLIT: leave the sections' sums in part_sums [T, HEADS, SLOTS, VALUE], part_maxima and part_weights [T, HEADS, SLOTS].
    PRODUCT, VALUE_PRODUCT: types of both products' operands.
    """
    QUERIES: tl.constexpr = ROWS // SIDE
    VALUE_TILES: tl.constexpr = (VALUE + VALUE_TILE - 1) // VALUE_TILE
    SIDES: tl.constexpr = (GROUP + SIDE - 1) // SIDE
    tile = tl.program_id(0)
    lane = tl.program_id(1)
    sequence = spans.sequence_of_tile(tile, cu_seqlens, num_seqs, QUERIES)
    first_row = tl.load(cu_seqlens + sequence)
    query_len = tl.load(cu_seqlens + sequence + 1) - first_row
    seq_len = tl.load(seq_lens + sequence)
    first_query = (tile - first_row // QUERIES - sequence) * QUERIES
    if first_query >= query_len:
        return

    value_tile = lane % VALUE_TILES
    side = lane // VALUE_TILES % SIDES
    kv_head = lane // VALUE_TILES // SIDES
    number = tl.arange(0, ROWS)
    query = first_query + number // SIDE
    in_group = side * SIDE + number % SIDE
    live = (query < query_len) & (number < QUERIES * SIDE) & (in_group < GROUP)
    query = tl.minimum(query, query_len - 1)
    row = (first_row + query).to(tl.int64)
    head = kv_head * GROUP + tl.minimum(in_group, GROUP - 1)
    position = seq_len - query_len + query
    own_first = spans.first_key(position, WINDOW, CHUNKED)
    section = spans.section_length(position, WINDOW)

    first_position = seq_len - query_len + first_query
    last_position = tl.minimum(first_position + QUERIES, seq_len) - 1
    lowest = spans.first_key(first_position, WINDOW, CHUNKED)
    shortest = spans.section_length(first_position, WINDOW)
    begin, end = _own_keys(lowest, last_position, KEYS, WINDOW, SPLIT)
    if SPLIT:
        is_idle = begin >= end
        if is_idle:
            return

    queries = operands.queries_of(q, row, head, live, q_row, q_head, SIZE, PADDED, PRODUCT)
    if REST > 0:
        queries_rest = operands.queries_of(q_rest, row, head, live, rest_row, rest_head, REST, REST_PADDED, PRODUCT)
    slope = tl.zeros([ROWS], tl.float32)
    if HAS_SLOPES:
        slope = tl.load(slopes + head) * LOG2E
    v_number = value_tile * VALUE_TILE + tl.arange(0, VALUE_TILE)
    maxima = tl.full([ROWS], float("-inf"), tl.float32)
    weights = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, VALUE_TILE], tl.float32)
    if not SPLIT:
        total_maxima = tl.full([ROWS], float("-inf"), tl.float32)
        total_weights = tl.zeros([ROWS], tl.float32)
        totals = tl.zeros([ROWS, VALUE_TILE], tl.float32)
    part = (row * HEADS + head) * SLOTS - own_first // section
    table = tables + sequence.to(tl.int64) * table_stride
    tail = tails + sequence * tail_depth

    for start in range(begin, end, KEYS):
        key = start + tl.arange(0, KEYS)
        readable = (key >= lowest) & (key <= last_position)
        block, offset = cells.place_of(key, readable, table, tail, seq_len - tail_depth, BLOCK_SIZE, HAS_TAILS)
        k_place = block * BLOCK_STRIDE + kv_head * K_HEAD + offset * K_TOKEN
        keys = operands.keys_of(cache, k_place, readable, 0, SIZE, PADDED, PRODUCT, ELEMENT, NATIVE)
        scores = portable.dot(queries, keys, tl.zeros([ROWS, KEYS], tl.float32))
        if REST > 0:
            keys_rest = operands.keys_of(cache, k_place, readable, SIZE, REST, REST_PADDED, PRODUCT, ELEMENT, NATIVE)
            scores = portable.dot(queries_rest, keys_rest, scores)
        if SCALED:
            scale_place = block * SCALE_STRIDE + SCALE_BASE + kv_head * BLOCK_SIZE + offset
            k_scales = tl.load(scales + scale_place, mask=readable, other=0.0)
            scores = scores * k_scales[None, :]
        scaled = scores * score_scale
        seen = operands.masked(scaled, key, position, own_first, slope, cap_scale, HAS_CAP, HAS_SLOPES)
        maxima, weights, shares, shrink = operands.softened(seen, maxima, weights)
        if SCALED:
            v_scales = tl.load(scales + scale_place + SCALE_VALUES, mask=readable, other=0.0)
            shares = shares * v_scales[None, :]
        v_place = block * BLOCK_STRIDE + V_BASE + kv_head * V_HEAD + offset * V_TOKEN
        values = operands.values_of(cache, v_place, readable, v_number, VALUE, VALUE_PRODUCT, ELEMENT, NATIVE)
        sums = portable.dot(portable.cast(shares, VALUE_PRODUCT), values, sums * shrink[:, None])

        if (start + KEYS) % shortest == 0:
            done = (start + KEYS) % section == 0
            if SPLIT:
                kept = done & live & (weights > 0)
                place = part + start // section
                _leave(part_maxima, part_weights, part_sums, place, kept, maxima, weights, sums, v_number, VALUE)
            else:
                ended = tl.where(done, maxima, float("-inf"))
                total_maxima, total_weights, totals = _joined(total_maxima, total_weights, totals, ended, weights, sums)
            maxima = tl.where(done, float("-inf"), maxima)
            weights = tl.where(done, 0.0, weights)
            sums = tl.where(done[:, None], 0.0, sums)

    if SPLIT:
        kept = live & (weights > 0)
        place = part + (end - 1) // section
        _leave(part_maxima, part_weights, part_sums, place, kept, maxima, weights, sums, v_number, VALUE)
    else:
        total_maxima, total_weights, totals = _joined(total_maxima, total_weights, totals, maxima, weights, sums)
        result = _result(total_maxima, total_weights, totals, sinks, head, v_scale, HAS_SINKS)
        places = row[:, None] * out_row + head[:, None] * out_head + v_number[None, :]
        portable.store(out + places, result, live[:, None] & (v_number < VALUE)[None, :])
