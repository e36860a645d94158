"""The assignment of rows to experts.

Owns: `route_rows`, its kernels and their launches. Never does: choose experts. Called by: layers of experts.

Every (token, choice) pair is a row. Few rows get one block each; more are sorted by expert into padded blocks of rows, in
their order. Either way the number of blocks follows from the number of rows alone, so the host does not wait for the
device.

A program sorts the rows of one expert: it counts the rows of all experts, which tells where its blocks begin, and looks for
its own. From `MOST_COUNTED` rows on, a launch before it counts them, in chunks.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from core_kernels.triton.compiling.catalog import KernelRow
from core_kernels.triton.compiling.launch import blocks, options, power_of_two
from core_kernels.triton.products.product import Routed

FEW_ROWS = 64
"""Up to this many rows, sorting is skipped."""
BLOCK_ROWS = (16, 32, 64, 128)
MOST_COUNTED = 4096
"""Up to this many rows, each program counts all rows itself."""
MOST_EXPERTS = 512
"""More experts than this are sorted by torch: a program has their counts in its registers."""
FEWEST = 64
"""Of bins of a histogram: threads of a warp on every chip."""
LARGEST = tl.constexpr(BLOCK_ROWS[-1])
CHUNK = tl.constexpr(4096)
BLOCK = tl.constexpr(1024)
TOGETHER = tl.constexpr(8)
"""Chunks whose counts are read at once."""


@triton.jit(do_not_specialize=("rows",))
def spread(
    ids: tl.tensor, pairs: tl.tensor, experts: tl.tensor, rows: int, SIZE: tl.constexpr, ROWS: tl.constexpr
) -> None:
    """Give each row a block of its own: one program. pairs: int32 [rows, SIZE]."""
    row = tl.arange(0, ROWS)
    inside = row < rows
    tl.store(experts + row, tl.load(ids + row, mask=inside, other=0).to(tl.int32), mask=inside)
    place = tl.arange(0, SIZE)[None, :]
    pair = tl.where(place == 0, row[:, None], -1)
    tl.store(pairs + row[:, None] * SIZE + place, pair, mask=inside[:, None])


@triton.jit(do_not_specialize=("rows",))
def count_rows(ids: tl.tensor, counts: tl.tensor, rows: int, EXPERTS: tl.constexpr) -> None:
    """Count the rows of each expert in a chunk: program (chunk) writes int32 counts [chunks, EXPERTS]."""
    chunk = tl.program_id(0)
    totals = _counted(ids, chunk * CHUNK, tl.minimum((chunk + 1) * CHUNK, rows), EXPERTS)
    tl.store(counts + chunk * EXPERTS + tl.arange(0, EXPERTS), totals)


@triton.jit
def _counted(ids: tl.tensor, first: tl.tensor, end: tl.tensor, EXPERTS: tl.constexpr) -> tl.tensor:
    """Return the number of rows of each expert, int32 [EXPERTS]."""
    totals = tl.zeros([EXPERTS], tl.int32)
    for start in range(first, end, BLOCK):
        row = start + tl.arange(0, BLOCK)
        chosen = tl.load(ids + row, mask=row < end, other=0).to(tl.int32)
        totals += tl.histogram(chosen, EXPERTS, mask=row < end)
    return totals


@triton.jit(do_not_specialize=("rows", "most", "size"))
def sort_rows(
    ids: tl.tensor,
    counts: tl.tensor,
    pairs: tl.tensor,
    experts: tl.tensor,
    rows: int,
    most: int,
    size: int,
    EXPERTS: tl.constexpr,
) -> None:
    """Write the blocks of one expert: program (expert). counts may be absent.

    pairs: int32 [most, size], -1 where a block is not full. experts: int32 [most], -1 for blocks that nobody needs.
    """
    own = tl.program_id(0)
    expert = tl.arange(0, EXPERTS)
    if counts is None:
        totals = _counted(ids, 0, rows, EXPERTS)
    else:
        totals = tl.zeros([EXPERTS], tl.int32)
        chunks = tl.cdiv(rows, CHUNK)
        for start in range(0, chunks, TOGETHER):
            chunk = start + tl.arange(0, TOGETHER)[:, None]
            some = tl.load(counts + chunk * EXPERTS + expert[None, :], mask=chunk < chunks, other=0)
            totals += tl.sum(some, axis=0)
    sizes = (totals + size - 1) // size
    first = tl.sum(tl.where(expert < own, sizes, 0), axis=0)
    mine = tl.sum(tl.where(expert == own, totals, 0), axis=0)
    begin = pairs + first * size
    before = tl.zeros([], tl.int32)
    for start in range(0, rows, BLOCK):
        row = start + tl.arange(0, BLOCK)
        is_own = (tl.load(ids + row, mask=row < rows, other=-1) == own).to(tl.int32)
        tl.store(begin + before + tl.cumsum(is_own, 0) - 1, row, mask=is_own > 0)
        before += tl.sum(is_own, axis=0)
    slot = tl.arange(0, LARGEST)
    end = first + (mine + size - 1) // size
    for block in range(first, end):
        place = (block - first) * size + slot
        tl.store(begin + place, -1, mask=(slot < size) & (place >= mine))
        tl.store(experts + block, own)
    for block in range(tl.sum(sizes, axis=0) + own, most, tl.num_programs(0)):
        tl.store(pairs + block * size + slot, -1, mask=slot < size)
        tl.store(experts + block, -1)


def route_rows(ids: Tensor, count: int) -> Routed:
    """Assign rows to blocks. ids: int64 [T, k], below `count`."""
    rows, top_k = ids.numel(), ids.shape[1]
    flat = ids.flatten()
    if rows <= FEW_ROWS:
        size = BLOCK_ROWS[0]
        pairs, experts = _empty(ids, rows, size)
        spread[(1,)](flat, pairs, experts, rows, SIZE=size, ROWS=FEW_ROWS, **options(4))
        return Routed(pairs, experts, top_k, count, size)
    size = _block_rows(rows, count)
    most = _most_blocks(rows, size, count)
    if count > MOST_EXPERTS:
        return Routed(*sorted_by_torch(flat, count, size, most), top_k, count, size)
    pairs, experts = _empty(ids, most, size)
    bins = {"EXPERTS": _bins(count), **options(4)}
    counts = None
    if rows > MOST_COUNTED:
        chunks = blocks(rows, CHUNK.value)
        counts = torch.empty((chunks, bins["EXPERTS"]), dtype=torch.int32, device=ids.device)
        count_rows[(chunks,)](flat, counts, rows, **bins)
    sort_rows[(count,)](flat, counts, pairs, experts, rows, most, size, **bins)
    return Routed(pairs, experts, top_k, count, size)


def sorted_by_torch(flat: Tensor, count: int, size: int, most: int) -> tuple[Tensor, Tensor]:
    """Return the pairs and the experts of blocks, as the kernels do: their reference."""
    rows = len(flat)
    sorted_ids, order = torch.sort(flat, stable=True)
    numbers = torch.arange(count, device=flat.device)
    starts = torch.searchsorted(sorted_ids, numbers)
    ends = torch.searchsorted(sorted_ids, numbers, right=True)
    sizes = (ends - starts + size - 1) // size  # blocks per expert
    last_blocks = sizes.cumsum(0)
    first_rows = (last_blocks - sizes) * size
    at = first_rows[sorted_ids] + torch.arange(rows, device=flat.device) - starts[sorted_ids]
    pairs = torch.full((most * size,), -1, dtype=torch.int32, device=flat.device)
    pairs[at] = order.int()
    every_block = torch.arange(most, device=flat.device)
    experts = torch.searchsorted(last_blocks, every_block, right=True)
    experts = torch.where(experts < count, experts, -1)
    return pairs, experts.int()


def _empty(ids: Tensor, most: int, size: int) -> tuple[Tensor, Tensor]:
    """Return memory for the pairs and the experts of blocks."""
    memory = torch.empty(most * (size + 1), dtype=torch.int32, device=ids.device)
    return memory[: most * size], memory[most * size :]


def _block_rows(rows: int, count: int) -> int:
    """Return the smallest block size that is at least an expert's average share of the rows."""
    share = rows / count
    return next((size for size in BLOCK_ROWS if share <= size), BLOCK_ROWS[-1])


def _most_blocks(rows: int, size: int, count: int) -> int:
    """Return how many blocks the rows fill at most, however they are distributed."""
    return min(blocks(rows, size) + count, rows)


def _bins(count: int) -> int:
    return max(power_of_two(count), FEWEST)


def _rows() -> list[KernelRow]:
    written = {"pairs": "*i32", "experts": "*i32"}
    few = {"ids": "*i64", **written, "rows": "i32"}
    found = [KernelRow("few rows of experts", f"{__name__}:spread", few, {"SIZE": BLOCK_ROWS[0], "ROWS": FEW_ROWS})]
    for experts in (64, 128, 256, MOST_EXPERTS):
        constants = {"EXPERTS": experts}
        counted = {"ids": "*i64", "counts": "*i32", "rows": "i32"}
        sorting = few | {"most": "i32", "size": "i32"}
        words = f"of up to {experts} experts"
        found += [
            KernelRow(f"count rows {words}", f"{__name__}:count_rows", counted, constants),
            KernelRow(f"sort rows {words}", f"{__name__}:sort_rows", sorting, constants | {"counts": None}),
            KernelRow(f"sort counted rows {words}", f"{__name__}:sort_rows", sorting | counted, constants),
        ]
    return found


ROWS = tuple(_rows())
