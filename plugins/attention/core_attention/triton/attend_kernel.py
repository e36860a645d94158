"""The attention kernel: tiles of rows over the keys of their sequence, for every kind of paged layer.

Owns: the order of its work. Never does: load an operand (`operands.py` does), or write the cache.
Called by: `launch.py`.

A program handles some rows of one sequence, with the heads that share a key-value head side by side. Decode, drafts,
chunks and prompts use tiles of the same shape, so a row is computed by the same instructions everywhere. Latent layers
are layers with one key-value head, whose values are the first numbers of its keys.
"""

from __future__ import annotations

import triton
import triton.language as tl

from core_attention.triton import cells, operands, spans, work
from core_attention.triton.sums import Parts, Sums, continued, empty, joined, leave, result_of
from core_kernels.triton import portable

VARYING = ["num_seqs", "table_stride", "tail_depth"]
"""Arguments that change from step to step; kernels are not specialized for their values."""


@triton.jit
def _store_output(
    result: tl.tensor,
    out: tl.tensor,
    rows: work.Rows,
    out_row: tl.tensor,
    out_head: tl.tensor,
    v_number: tl.tensor,
    LAYER: tl.constexpr,
) -> None:
    """Store the attention output of the rows."""
    places = rows.row[:, None] * out_row + rows.head[:, None] * out_head + v_number[None, :]
    portable.store(out + places, result, rows.is_live[:, None] & (v_number < LAYER.value_size)[None, :])


@triton.jit(do_not_specialize=VARYING)
def attend(
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
    LAYER: tl.constexpr,
    BLOCKS: tl.constexpr,
    HAS_TAILS: tl.constexpr,
    SPLIT: tl.constexpr,
) -> None:
    """Attend with one tile of rows, some heads of one key-value head, some numbers of the values, over some sections.

    LAYER: an `Attended`. BLOCKS: a `BlockLayout`. SPLIT: store the sections' partial results in part_sums, part_maxima
    and part_weights, see `Parts`.
    """
    tile = tl.program_id(0)
    lane = tl.program_id(1)
    sequence = work.sequence_of(tile, cu_seqlens, seq_lens, num_seqs, LAYER)
    if sequence.first_query >= sequence.query_len:
        return

    value_tile, side, kv_head = work.lane_of(lane, LAYER)
    rows = work.rows_of(sequence, kv_head, side, LAYER)
    span = work.span_of(sequence, LAYER, SPLIT)
    if SPLIT:
        is_idle = span.begin >= span.end
        if is_idle:
            return

    queries, queries_rest = operands.queries_of(q, q_rest, rows, q_row, q_head, rest_row, rest_head, LAYER)
    slope = operands.slopes_of(slopes, rows, LAYER)
    v_number = value_tile * LAYER.value_tile + tl.arange(0, LAYER.value_tile)
    section = empty(LAYER)
    if not SPLIT:
        total = empty(LAYER)
    parts = Parts(part_sums, part_maxima, part_weights)
    part = (rows.row * LAYER.heads + rows.head) * spans.SLOTS - rows.first_key // rows.section
    table = tables + sequence.nth.to(tl.int64) * table_stride
    tail = tails + sequence.nth * tail_depth
    first_tail = sequence.seq_len - tail_depth

    for start in range(span.begin, span.end, LAYER.keys):
        key = start + tl.arange(0, LAYER.keys)
        readable = (key >= span.lowest) & (key <= span.last)
        block, offset = cells.place_of(key, readable, table, tail, first_tail, BLOCKS.block_size, HAS_TAILS)
        keys = operands.KeyTile(cache, scales, kv_head, block, offset, readable)
        products = operands.scores_of(queries, queries_rest, keys, LAYER, BLOCKS)
        k_scales = operands.scales_of(keys, BLOCKS)
        scores = operands.scaled(products, k_scales, keys, BLOCKS) * score_scale
        seen = operands.masked(scores, key, rows, slope, cap_scale, LAYER)
        maxima, weights, shares, shrink = operands.softened(seen, section.maxima, section.weights)
        shares = operands.scaled(shares, k_scales + BLOCKS.scale_values, keys, BLOCKS)
        sums = operands.weighed(section.sums, shrink, shares, keys, v_number, LAYER, BLOCKS)
        section = Sums(maxima, weights, sums)

        stop = start + LAYER.keys
        if stop % span.shortest == 0:
            done = stop % rows.section == 0
            if SPLIT:
                kept = done & rows.is_live & (weights > 0)
                leave(parts, part + start // rows.section, kept, section, v_number, LAYER.value_size)
            else:
                ended = tl.where(done, maxima, float("-inf"))
                total = joined(total, Sums(ended, weights, sums))
            section = continued(section, done)

    if SPLIT:
        kept = rows.is_live & (section.weights > 0)
        leave(parts, part + (span.end - 1) // rows.section, kept, section, v_number, LAYER.value_size)
    else:
        result = result_of(joined(total, section), sinks, rows.head, v_scale, LAYER.has_sinks)
        _store_output(result, out, rows, out_row, out_head, v_number, LAYER)
