"""The attention kernel: the items of a step's list, for every kind of paged layer.

Owns: the order of its work. Never does: load an operand (`operands.py` does), or write the cache.
Called by: `launch.py`.

A program handles some keys of some rows of one sequence, with the heads that share a key-value head side by side.
Decode, drafts, chunks and prompts use tiles that divide keys in the same way, so a row is computed by the same
instructions everywhere. Latent layers are layers with one key-value head, whose values are the first numbers of its
keys.
"""

from __future__ import annotations

import triton
import triton.language as tl

from core_attention.triton import cells, operands, spans, work
from core_attention.triton.merge import Parts, finish, is_last, leave, merge
from core_attention.triton.sums import Sums, continued, empty, ended, joined

VARYING = ["table_stride", "tail_depth"]
"""Arguments that change from step to step; kernels are not specialized for their values."""


@triton.jit(do_not_specialize=VARYING)
def attend(
    q: tl.tensor,
    q_rest: tl.tensor,
    out: tl.tensor,
    cache: tl.tensor,
    scales: tl.tensor,
    items: tl.tensor,
    tables: tl.tensor,
    tails: tl.tensor,
    sinks: tl.tensor,
    slopes: tl.tensor,
    part_sums: tl.tensor,
    part_maxima: tl.tensor,
    part_weights: tl.tensor,
    arrived: tl.tensor,
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
    LAYER: tl.constexpr,
    BLOCKS: tl.constexpr,
    HAS_TAILS: tl.constexpr,
) -> None:
    """Attend with one item of the list, some heads of one key-value head, and some numbers of the values.

    items: see `work.read_item`. LAYER: an `Attended`. BLOCKS: a `BlockLayout`. part_sums, part_maxima, part_weights:
    partial results of divided tiles, see `Parts`. arrived: see `Plan`.
    """
    number = tl.program_id(0) % LAYER.lanes
    nth = tl.program_id(0) // LAYER.lanes
    if nth >= tl.load(items):
        return

    item = work.read_item(items, nth)
    sequence = item.sequence
    lane = work.lane_of(number, LAYER)
    rows = work.rows_of(items, sequence, lane, 0, LAYER.rows, LAYER)
    span = work.span_of(items, sequence, LAYER)
    is_part = item.room >= 0

    queries, queries_rest = operands.queries_of(q, q_rest, rows, q_row, q_head, rest_row, rest_head, LAYER)
    slope = operands.slopes_of(slopes, rows, LAYER)
    section = empty(LAYER.rows, LAYER)
    total = empty(LAYER.rows, LAYER)
    parts = Parts(part_sums, part_maxima, part_weights)
    table = tables + sequence.nth.to(tl.int64) * table_stride
    tail = tails + sequence.nth * tail_depth
    first_tail = sequence.seq_len - tail_depth

    for start in range(item.begin, item.end, LAYER.keys):
        key = start + tl.arange(0, LAYER.keys)
        readable = key <= span.last
        if LAYER.window > 0:
            readable = readable & (key >= span.lowest)
        block, offset = cells.place_of(key, readable, table, tail, first_tail, BLOCKS.block_size, HAS_TAILS)
        keys = operands.KeyTile(cache, scales, lane.kv_head, block, offset, readable)
        k_scales = operands.scales_of(keys, BLOCKS)
        products = operands.scores_of(queries, queries_rest, keys, LAYER, BLOCKS)
        scores = operands.scaled(products, k_scales, keys, BLOCKS) * score_scale
        seen = operands.masked(scores, key, rows, slope, cap_scale, LAYER)
        maxima, weights, shares, shrink = operands.softened(seen, section.maxima, section.weights)
        shares = operands.scaled(shares, k_scales + BLOCKS.scale_values, keys, BLOCKS)
        sums = operands.weighed(section.sums, shrink, shares, keys, lane.v_number, LAYER, BLOCKS)
        section = Sums(maxima, weights, sums)

        if spans.is_boundary(start + LAYER.keys, span.shortest_bits):
            done = spans.is_boundary(start + LAYER.keys, rows.section_bits)
            if is_part:
                leave(parts, items, nth, number, start, done, section, LAYER)
                total = empty(LAYER.rows, LAYER)  # as it was; said again, no register has to keep it meanwhile
            else:
                total = joined(total, ended(section, done))
            section = continued(section, done)

    if is_part:
        leave(parts, items, nth, number, item.end - 1, tl.full([LAYER.rows], True, tl.int1), section, LAYER)
        if is_last(arrived, items, nth, number, LAYER):
            merge(parts, items, nth, number, arrived, out, out_row, out_head, sinks, v_scale, LAYER)
    else:
        finish(joined(total, section), items, nth, number, out, out_row, out_head, sinks, v_scale, LAYER)
