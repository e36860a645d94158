"""The sampler: the tokens of `core_runtime.sampling`'s race, bit for bit, with its filters and with token masks.

Owns: the launches of a race's kernels, and their catalog rows. Never does: interpret a request's parameters.
Called by: the provider.

peak: of each part of each row, the largest logit that may come, its lowest id, and whether a logit is not finite.
survey, gather, conclude: of each row with filters, the smallest score that passes min-p, top-k and top-p.
draw: of each part, the best z - ln E and its lowest id; then of each row, the best of its parts.

Programs take `LANES` rows at once, one on a GPU; the interpreter is quicker with more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from core_kernels.triton.compiling.catalog import KernelRow
from core_kernels.triton.compiling.chips import INTERPRETER, NAMES
from core_kernels.triton.compiling.launch import blocks, chip_of, options, power_of_two
from core_kernels.triton.sampler.candidates import MOST_PARTS, STEPS
from core_kernels.triton.sampler.race_conclude import conclude
from core_kernels.triton.sampler.race_draw import draw
from core_kernels.triton.sampler.race_limits import ROOM, WHOLE_SIZE
from core_kernels.triton.sampler.race_peak import peak
from core_kernels.triton.sampler.race_sift import gather, survey
from core_runtime.contracts import RaceCall

BLOCK = 1024
"""Logits of a tile."""
SIFT_WARPS = 8
GATHER_WARPS = 4
GATHERED = 512
"""Logits of a tile of `gather`. It and `conclude` have the sizes with which no version of Triton spills a register."""
DRAW_WARPS = 8
PROGRAMS = 1024
"""Of a pass of a filter, for all rows: eight for each of the 132 processors of a large GPU."""


def race(*arguments: Any) -> None:
    """Sample tokens with all tensors on one device: the `MaskedRaceKernel` contract."""
    call = RaceCall(*arguments)
    logits, which, heat = call.logits, call.which, call.temperatures
    count = len(which)
    if not count:
        return
    vocab_size = logits.shape[1]
    lanes = min(power_of_two(count), 2048) if chip_of(logits.device) == INTERPRETER else 1
    block = min(power_of_two(vocab_size), BLOCK)
    parts = min(blocks(vocab_size, 4 * block), MOST_PARTS.value)
    part_size = 4 * block * blocks(vocab_size, 4 * block * parts)
    words, mask_index, mask_stride = (None, None, 0) if call.masks is None else (*call.masks, call.masks[0].stride(0))
    tops = logits.new_empty(parts, count)
    scores = logits.new_empty(parts, count)
    top_ids = torch.empty((parts, count), dtype=torch.int32, device=logits.device)
    score_ids = torch.empty_like(top_ids)
    sizes = (logits.stride(0), vocab_size, count, part_size, mask_stride)
    grid = (blocks(count, lanes), parts)
    tile = {"LANES": lanes, "BLOCK": block}
    exact = options(4, fusion=False)
    row = (logits, which, words, mask_index)
    arrived = torch.empty(grid[0], dtype=torch.int32, device=logits.device)
    memory = None
    if call.filters is not None:
        memory = torch.empty((count, WHOLE_SIZE), dtype=torch.int64, device=logits.device)
    of_parts = {"PARTS": parts, **tile, **exact}
    peak[grid](*row, tops, top_ids, arrived, memory, *sizes, CLEARS=WHOLE_SIZE, **of_parts)
    limit = None if memory is None else limits_of(call, row, tops, memory, sizes, lanes, block)
    of_parts |= {"BLOCK": max(block // 4, 1), **options(DRAW_WARPS, fusion=False)}
    given = (*row, tops, top_ids, heat, call.keys, limit, scores, score_ids, arrived, call.out)
    draw[grid](*given, *sizes, **of_parts)


def limits_of(
    call: RaceCall, row: tuple[Any, ...], tops: Tensor, memory: Tensor, sizes: tuple[int, ...], lanes: int, block: int
) -> Tensor:
    """Return the smallest score of each row that passes its filters: int32 [S]. memory: int64 zeros [S, WHOLE_SIZE]."""
    assert call.filters is not None
    parts, count = tops.shape
    stride, vocab_size, _, _, mask_stride = sizes
    programs = max(1, min(PROGRAMS // count, blocks(vocab_size, block)))
    part_size = block * blocks(vocab_size, block * programs)
    grid = (blocks(count, lanes), programs)
    kept = torch.empty((count, ROOM.value), dtype=torch.int32, device=tops.device)
    limit = torch.empty(count, dtype=torch.int32, device=tops.device)
    common = {"PARTS": parts, "LANES": lanes}
    own = options(SIFT_WARPS, fusion=False)
    given = (*row, tops, call.temperatures, *call.filters, memory, kept)
    sizes = (stride, vocab_size, count, part_size, mask_stride)
    survey[grid](*given, *sizes, BLOCK=block, **common, **own)
    gather[grid](*given, *sizes, BLOCK=min(block, GATHERED), **common, **options(GATHER_WARPS, fusion=False))
    concluded = min(block, concluded_block(chip_of(tops.device)))
    conclude[grid[:1]](*given, limit, *sizes, BLOCK=concluded, **common, **own)
    return limit


def concluded_block(chip: str) -> int:
    """Return the logits of a tile of `conclude`."""
    return 512 if chip.startswith("gfx") else 256


PACKAGE = "core_kernels.triton.sampler"
_FUNCTIONS = {
    "peak": f"{PACKAGE}.race_peak:peak",
    "survey": f"{PACKAGE}.race_sift:survey",
    "gather": f"{PACKAGE}.race_sift:gather",
    "conclude": f"{PACKAGE}.race_conclude:conclude",
    "draw": f"{PACKAGE}.race_draw:draw",
}

_WARPS = {"peak": 4, "survey": SIFT_WARPS, "gather": GATHER_WARPS, "conclude": SIFT_WARPS, "draw": DRAW_WARPS}


def _row(kernel: str, masked: bool, signature: dict[str, str], constants: dict[str, object]) -> KernelRow:
    """Return a catalog row of a kernel that reads logits."""
    types = {"logits": "*fp32", "which": "*i64"}
    absent: dict[str, object] = {}
    name = kernel
    if masked:
        types |= {"words": "*i32", "mask_index": "*i64"}
        name += " with masks"
    else:
        absent = {"words": None, "mask_index": None}
    if "limit" in signature:
        name += " within limits"
    if kernel == "peak" and "memory" in signature:
        name += " before filters"
    types |= signature | dict.fromkeys(STEPS, "i32")
    reads = (4 * BLOCK,) if kernel == "peak" else ()
    return KernelRow(
        name,
        _FUNCTIONS[kernel],
        types,
        constants | absent,
        num_warps=_WARPS[kernel],
        fp_fusion=False,
        no_fma=True,
        reads=reads,
    )


_TILE: dict[str, object] = {"LANES": 1, "BLOCK": BLOCK, "PARTS": 32}
_CLEAR = _TILE | {"CLEARS": WHOLE_SIZE}
_DRAW = _TILE | {"BLOCK": 256}
_PEAKS = {"tops": "*fp32", "top_ids": "*i32", "arrived": "*i32"}
_HEAT = {"tops": "*fp32", "temperatures": "*fp32"}
_FILTERS = _HEAT | {"top_k": "*i64", "top_p": "*fp64", "least": "*fp32", "memory": "*i64", "kept": "*i32"}
_KEYED = _HEAT | _PEAKS | {"keys": "*i64", "scores": "*fp32", "score_ids": "*i32", "out": "*i64"}


def _rows() -> Iterator[KernelRow]:
    for masked in (False, True):
        yield _row("peak", masked, _PEAKS, _CLEAR | {"memory": None})
        yield _row("peak", masked, _PEAKS | {"memory": "*i64"}, _CLEAR)
        yield _row("survey", masked, _FILTERS, _TILE)
        yield _row("gather", masked, _FILTERS, _TILE | {"BLOCK": GATHERED})
        for chip in NAMES:
            row = _row("conclude", masked, _FILTERS | {"out": "*i32"}, _TILE | {"BLOCK": concluded_block(chip)})
            yield replace(row, name=f"{row.name} ({chip})", chips=(chip,))
        yield _row("draw", masked, _KEYED, _DRAW | {"limit": None})
        yield _row("draw", masked, _KEYED | {"limit": "*i32"}, _DRAW)


ROWS = tuple(_rows())
