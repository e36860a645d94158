"""Products of 8-bit integers with a scale per output and per row of inputs: W8A8.

Owns: the kernel, its tiles and its launch. Never does: round inputs, or prepare a weight. Called by: linear layers.

Sums are 32-bit integers, exact in any order, so a row's bits depend on neither tiles nor neighbours.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from core_kernels.triton import portable
from core_kernels.triton.compiling.catalog import KernelRow
from core_kernels.triton.compiling.launch import blocks, options
from core_kernels.triton.products.block import place_of_program, store_block

STEPS = ("num_rows", "num_outputs", "num_inputs", "num_blocks", "value_stride", "out_stride")
VARYING = ("num_rows", "num_blocks")
MOST_INPUTS: Final = 1 << 17
"""Maximum number of inputs: that many products of two numbers up to 127 still sum within 32 bits."""

MATRIX: Final = r"\bmma\.sync\S*\.s8\.s8|\bwgmma\.mma_async\S*\.s8\.s8|\btcgen05\.mma\S*\.kind::i8|\bv_mfma_i32_\w*i8"
"""The matrix units' products of integers. On sm_100, Triton 3.6 has those of sm_80."""


class Tile(NamedTuple):
    """A configuration of the kernel.

    rows: maximum row count for which it is chosen; 0: any.
    bn, bt, bk: outputs, rows and inputs per step of a program. warps, stages: of a program.
    """

    rows: int
    bn: int
    bt: int
    bk: int
    warps: int
    stages: int


TILES: Final = (Tile(16, 64, 16, 64, 4, 4), Tile(64, 64, 64, 64, 4, 3), Tile(0, 128, 64, 64, 8, 3))


@triton.jit(do_not_specialize=VARYING)
def product(
    codes: tl.tensor,
    scales: tl.tensor,
    values: tl.tensor,
    value_scales: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    num_rows: int,
    num_outputs: int,
    num_inputs: int,
    num_blocks: int,
    value_stride: int,
    out_stride: int,
    ACCUMULATE: tl.constexpr,
    WHOLE: tl.constexpr,
    BN: tl.constexpr,
    BT: tl.constexpr,
    BK: tl.constexpr,
) -> None:
    """Compute one block of outputs for one block of rows. codes int8 [rows, inputs], scales float32 [rows]; values int8
    [outputs, value_stride], value_scales float32 [outputs]. num_blocks: number of row blocks. WHOLE: BK divides the
    inputs.
    """
    row_block, first_column = place_of_program(num_outputs, num_blocks, BN)
    first_row = row_block * BT
    column = first_column + tl.arange(0, BN)
    row = first_row + tl.arange(0, BT)
    # 32 bits suffice for offsets within a tile; the tile's start needs 64.
    w_tile = values + first_column.to(tl.int64) * value_stride
    x_tile = codes + first_row.to(tl.int64) * num_inputs
    w_row = tl.minimum(tl.arange(0, BN), num_outputs - 1 - first_column)[:, None] * value_stride
    x_row = tl.minimum(tl.arange(0, BT), num_rows - 1 - first_row)[None, :] * num_inputs
    total = tl.zeros([BN, BT], tl.int32)
    for start in range(0, num_inputs, BK):
        at = start + tl.arange(0, BK)
        if WHOLE:
            w = tl.load(w_tile + w_row + at[None, :])
            x = tl.load(x_tile + x_row + at[:, None])
        else:
            w = tl.load(w_tile + w_row + at[None, :], mask=(at < num_inputs)[None, :], other=0)
            x = tl.load(x_tile + x_row + at[:, None], mask=(at < num_inputs)[:, None], other=0)
        total = portable.dot_int8(w, x, total)
    scale = tl.load(scales + tl.minimum(row, num_rows - 1))
    value_scale = tl.load(value_scales + tl.minimum(column, num_outputs - 1))
    result = total.to(tl.float32) * scale[None, :] * value_scale[:, None]
    inside = (column < num_outputs)[:, None] & (row < num_rows)[None, :]
    if bias is not None:
        shift = portable.widen(tl.load(bias + tl.minimum(column, num_outputs - 1)))
        result = result + shift[:, None]
    place = out + row.to(tl.int64)[None, :] * out_stride + column[:, None]
    store_block(result, place, inside, ACCUMULATE)


def multiply_int8(
    codes: Tensor,
    scales: Tensor,
    values: Tensor,
    value_scales: Tensor,
    out: Tensor,
    bias: Tensor | None,
    *,
    accumulate: bool,
) -> None:
    """Compute out[T, N] = (scales · codes) @ (value_scales · values).T (+ bias), or += with `accumulate`.

    codes: int8 [T, K], K at most MOST_INPUTS. scales: float32 [T].
    values: int8 [N, K or more]. value_scales: float32 [N].
    """
    num_rows, num_inputs = codes.shape
    num_outputs = len(values)
    if not num_rows:
        return
    tile = next(tile for tile in TILES if num_rows <= tile.rows or not tile.rows)
    row_blocks = blocks(num_rows, tile.bt)
    steps = (num_rows, num_outputs, num_inputs, row_blocks, values.stride(0), out.stride(0))
    constants = {"ACCUMULATE": accumulate, "WHOLE": num_inputs % tile.bk == 0}
    constants |= {"BN": tile.bn, "BT": tile.bt, "BK": tile.bk}
    grid = (blocks(num_outputs, tile.bn) * row_blocks,)
    launched = options(tile.warps, tile.stages, fusion=False)
    product[grid](codes, scales, values, value_scales, bias, out, *steps, **constants, **launched)


def _row(kind: str, tile: Tile) -> KernelRow:
    signature = {"codes": "*i8", "scales": "*fp32", "values": "*i8", "value_scales": "*fp32", "out": f"*{kind}"}
    signature |= dict.fromkeys(STEPS, "i32")
    constants = {"bias": None, "ACCUMULATE": False, "WHOLE": True, "BN": tile.bn, "BT": tile.bt, "BK": tile.bk}
    rows = f"up to {tile.rows} rows" if tile.rows else "many rows"
    return KernelRow(
        f"int8 product to {kind}, {rows}",
        f"{__name__}:product",
        signature,
        constants,
        num_warps=tile.warps,
        num_stages=tile.stages,
        fp_fusion=False,
        holds=(MATRIX,),
        reads=(tile.bn * tile.bk, tile.bt * tile.bk),
    )


ROWS = tuple(_row(kind, tile) for kind in ("bf16", "fp16") for tile in TILES)
