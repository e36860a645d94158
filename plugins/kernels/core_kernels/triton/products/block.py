"""Helpers shared by the product kernels: the block of a program, and what becomes of its sums.

Owns: the order of programs, the joining of segments, bias, gate and accumulation. Never does: multiply. Called by: the
product kernels.
"""

from __future__ import annotations

import triton
import triton.language as tl

from core_kernels.triton import portable
from core_kernels.triton.activation import opened

AT_ONCE = tl.constexpr(4096)
"""Numbers that a program reads at once while it joins segments: with four warps 32 registers of a thread."""
SIDE_BY_SIDE = tl.constexpr(8)
"""Row blocks whose programs run side by side, so that they share the weight data they read."""


@triton.jit
def place_of_program(num_outputs: tl.tensor, num_blocks: tl.tensor, BN: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Return this program's block among `num_blocks` row blocks, and the first of its BN outputs."""
    pid = tl.program_id(0)
    of_group = SIDE_BY_SIDE * tl.cdiv(num_outputs, BN)
    first_block = pid // of_group * SIDE_BY_SIDE
    side_by_side = tl.minimum(num_blocks - first_block, SIDE_BY_SIDE)
    row_block = first_block + pid % of_group % side_by_side
    first_column = pid % of_group // side_by_side * BN
    return row_block, first_column


@triton.jit
def rows_of_tile(
    first_column: tl.tensor, num_outputs: tl.tensor, BN: tl.constexpr, GATED: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Return the weight's rows of a tile, counted from `first_column`, and whether each is one: [BN] both. Rows beyond
    the end repeat the last one.

    GATED: eight rows of the gate take turns with the eight rows of up that they open. In a fragment of the matrix units
    one thread has the rows i and i + 8, so it has both numbers.
    """
    at = tl.arange(0, BN)
    if GATED:
        half = num_outputs // 2
        output = at // 16 * 8 + at % 8
        is_row = output < half - first_column
        row = tl.minimum(output, half - 1 - first_column) + at // 8 % 2 * half
    else:
        is_row = at < num_outputs - first_column
        row = tl.minimum(at, num_outputs - 1 - first_column)
    return row, is_row


@triton.jit
def leave_segment(
    total: tl.tensor, partial: tl.tensor, inside: tl.tensor, counter: tl.tensor, SEGMENTS: tl.constexpr
) -> tl.tensor:
    """Store a segment's own sums [BN, BT] for the program that joins them; return whether this one does: it comes last."""
    tl.store(partial, total, mask=inside)
    portable.finish_stores()
    return tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == SEGMENTS - 1


@triton.jit
def join_segments(
    partial: tl.tensor, size: tl.tensor, inside: tl.tensor, counter: tl.tensor, SEGMENTS: tl.constexpr
) -> tl.tensor:
    """Add the segments' sums in their order, whichever came last; leave the counter as it was found. partial: places of
    the first segment's [BN, BT]. size: from one segment to the next.
    """
    tl.store(counter, 0)
    BN: tl.constexpr = inside.shape[0]
    BT: tl.constexpr = inside.shape[1]
    GROUP: tl.constexpr = max(1, min(SEGMENTS, AT_ONCE // (BN * BT)))
    total = tl.zeros([BN, BT], tl.float32)
    for first in range(0, SEGMENTS, GROUP):
        for nth in tl.static_range(GROUP):
            # Other programs have written these, of which the cache of this one's processor may not know.
            place = partial + (first + nth) * size
            total = total + tl.load(place, mask=inside, other=0.0, cache_modifier=".cg")
    return total


@triton.jit
def open_block(total: tl.tensor, GATE: tl.constexpr, dtype: tl.constexpr) -> tl.tensor:
    """Return act(gate) * up, float32 [BN / 2, BT], of a tile of `rows_of_tile`. Both are rounded first, as they are where
    the product stores them.
    """
    BN: tl.constexpr = total.shape[0]
    BT: tl.constexpr = total.shape[1]
    # Triton 3.6 takes attributes of a constant as arguments by such names alone.
    KIND: tl.constexpr = GATE.kind
    FIRST: tl.constexpr = GATE.first
    SECOND: tl.constexpr = GATE.second
    THIRD: tl.constexpr = GATE.third
    FOURTH: tl.constexpr = GATE.fourth
    kept = portable.widen(portable.cast(total, dtype))
    gate, up = tl.split(tl.permute(tl.reshape(kept, (BN // 16, 2, 8, BT)), (0, 2, 3, 1)))
    result = opened(gate, up, FIRST, SECOND, THIRD, FOURTH, KIND)
    return tl.reshape(result, (BN // 2, BT))


@triton.jit
def store_block(total: tl.tensor, place: tl.tensor, inside: tl.tensor, ACCUMULATE: tl.constexpr) -> None:
    """Store a block, adding the existing output, with one rounding."""
    if ACCUMULATE:
        total = total + portable.widen(tl.load(place, mask=inside, other=0.0))
    portable.store(place, total, inside)
