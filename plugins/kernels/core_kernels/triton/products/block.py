"""Helpers shared by the product kernels: the block of a program, and the storing of its result.

Owns: the order of programs, bias and accumulation. Never does: multiply. Called by: the product kernels.
"""

from __future__ import annotations

import triton
import triton.language as tl

from core_kernels.triton import portable

GROUP = tl.constexpr(8)
"""Row blocks whose programs run side by side, so that they share the weight data they read."""


@triton.jit
def place_of_program(num_outputs: tl.tensor, num_blocks: tl.tensor, BN: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Return this program's block among `num_blocks` row blocks, and the first of its BN outputs."""
    pid = tl.program_id(0)
    of_group = GROUP * tl.cdiv(num_outputs, BN)
    first_block = pid // of_group * GROUP
    side_by_side = tl.minimum(num_blocks - first_block, GROUP)
    row_block = first_block + pid % of_group % side_by_side
    first_column = pid % of_group // side_by_side * BN
    return row_block, first_column


@triton.jit
def store_block(
    total: tl.tensor,
    place: tl.tensor,
    bias: tl.tensor,
    column: tl.tensor,
    inside: tl.tensor,
    num_outputs: tl.tensor,
    ACCUMULATE: tl.constexpr,
) -> None:
    """Store a block [BN, BT], adding the bias and the existing output, with one rounding."""
    if bias is not None:
        shift = portable.widen(tl.load(bias + tl.minimum(column, num_outputs - 1)))
        total = total + shift[:, None]
    if ACCUMULATE:
        total = total + portable.widen(tl.load(place, mask=inside, other=0.0))
    portable.store(place, total, inside)
