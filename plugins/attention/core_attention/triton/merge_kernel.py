"""The kernel that merges the partial results of a split step: the sections of each row, in order.

Owns: the merge. Never does: read the cache. Called by: `launch.py`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from core_attention.triton import spans
from core_attention.triton.sums import LOG2E
from core_kernels.triton import portable


@triton.jit(do_not_specialize=["num_seqs"])
def merge(
    part_sums: tl.tensor,
    part_maxima: tl.tensor,
    part_weights: tl.tensor,
    out: tl.tensor,
    cu_seqlens: tl.tensor,
    seq_lens: tl.tensor,
    sinks: tl.tensor,
    num_seqs: tl.tensor,
    out_row: tl.tensor,
    out_head: tl.tensor,
    v_scale: tl.tensor,
    HEADS: tl.constexpr,
    VALUE: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr,
    HAS_SINKS: tl.constexpr,
) -> None:
    """Merge one head of one row; the arguments are those of `attend`."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    if row >= tl.load(cu_seqlens + num_seqs):
        return
    sequence = spans.sequence_of_row(row, cu_seqlens, num_seqs)
    behind = tl.load(cu_seqlens + sequence + 1) - row
    position = tl.load(seq_lens + sequence) - behind
    section = spans.section_length(position, WINDOW)
    first = spans.first_key(position, WINDOW, CHUNKED) // section
    count = position // section - first + 1
    number = tl.arange(0, VALUE_PADDED)
    inside = number < VALUE
    base = (row.to(tl.int64) * HEADS + head) * spans.SLOTS
    total_maximum = tl.load(part_maxima + base)
    total_weight = tl.load(part_weights + base)
    total = tl.load(part_sums + base * VALUE + number, mask=inside, other=0.0)
    for nth in range(1, count):
        place = base + nth
        maximum = tl.load(part_maxima + place)
        common = tl.maximum(total_maximum, maximum)
        old = spans.weight(total_maximum, common)
        new = spans.weight(maximum, common)
        sums = tl.load(part_sums + place * VALUE + number, mask=inside, other=0.0)
        total_weight = spans.merged(total_weight, old, tl.load(part_weights + place), new)
        total = spans.merged(total, old, sums, new)
        total_maximum = common
    if HAS_SINKS:
        sink = tl.load(sinks + head) * LOG2E
        common = tl.maximum(total_maximum, sink)
        old = spans.weight(total_maximum, common)
        total_weight = spans.merged(total_weight, old, 1.0, spans.weight(sink, common))
        total = total * old
    result = total / total_weight * v_scale
    portable.store(out + row.to(tl.int64) * out_row + head * out_head + number, result, inside)
