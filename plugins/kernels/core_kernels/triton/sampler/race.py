"""The sampler: the tokens of `core_runtime.sampling`'s race, bit for bit, with its filters and with token masks.

Owns: the launches of a race's kernels, and their catalog rows. Never does: interpret a request's parameters.
Called by: the provider.

peak: of each part of each row, the largest logit that may come, its lowest id, and whether a logit is not finite.
sift, conclude: of each row with filters, the smallest score that passes min-p, top-k and top-p.
draw: of each part, the best z - ln E and its lowest id.
settle: of each row, the best of its parts.

Programs take `LANES` rows at once, one on a GPU; the interpreter is quicker with more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from core_kernels.triton.compiling.catalog import KernelRow
from core_kernels.triton.compiling.chips import INTERPRETER
from core_kernels.triton.compiling.launch import blocks, chip_of, options, power_of_two
from core_kernels.triton.sampler.candidates import MOST_PARTS, STEPS
from core_kernels.triton.sampler.race_draw import draw
from core_kernels.triton.sampler.race_limits import PASSES, ROOM, SIZE
from core_kernels.triton.sampler.race_peak import peak, settle
from core_kernels.triton.sampler.race_sift import conclude, sift
from core_runtime.contracts import RaceCall

BLOCK = 1024
"""Logits of a tile."""
SIFT_WARPS = 8
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
    peak[grid](*row, tops, top_ids, *sizes, **tile, **exact)
    limit = None
    if call.filters is not None:
        limit = limits_of(call, row, tops, sizes, lanes, block)
    quarter = {"LANES": lanes, "BLOCK": max(block // 4, 1)}
    draw[grid](*row, tops, heat, call.keys, limit, scores, score_ids, *sizes, PARTS=parts, **quarter, **exact)
    settle[grid[:1]](tops, top_ids, scores, score_ids, heat, call.out, count, PARTS=parts, LANES=lanes, **exact)


def limits_of(
    call: RaceCall, row: tuple[Any, ...], tops: Tensor, sizes: tuple[int, ...], lanes: int, block: int
) -> Tensor:
    """Return the smallest score of each row that passes its filters: int32 [S]."""
    assert call.filters is not None
    parts, count = tops.shape
    stride, vocab_size, _, _, mask_stride = sizes
    programs = max(1, min(PROGRAMS // count, blocks(vocab_size, block)))
    part_size = block * blocks(vocab_size, block * programs)
    grid = (blocks(count, lanes), programs)
    memory = torch.zeros((2, count, SIZE.value), dtype=torch.int64, device=tops.device)
    kept = torch.empty((count, ROOM.value), dtype=torch.int32, device=tops.device)
    limit = torch.empty(count, dtype=torch.int32, device=tops.device)
    common = {"PARTS": parts, "LANES": lanes, **options(SIFT_WARPS, fusion=False)}
    given = (*row, tops, call.temperatures, *call.filters, memory, kept)
    given += (stride, vocab_size, count, part_size, mask_stride)
    for by_weight in (False, True):
        for number in PASSES:
            sift[grid](*given, BY_WEIGHT=by_weight, PASS=number, BLOCK=block, **common)
    conclude[grid[:1]](tops, call.temperatures, call.filters[1], memory, limit, count, **common)
    return limit


PACKAGE = "core_kernels.triton.sampler"
_FUNCTIONS = {
    "peak": f"{PACKAGE}.race_peak:peak",
    "sift": f"{PACKAGE}.race_sift:sift",
    "conclude": f"{PACKAGE}.race_sift:conclude",
    "draw": f"{PACKAGE}.race_draw:draw",
    "settle": f"{PACKAGE}.race_peak:settle",
}


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
    types |= signature | dict.fromkeys(STEPS, "i32")
    function = _FUNCTIONS[kernel]
    warps = SIFT_WARPS if kernel == "sift" else 4
    reads = (4 * BLOCK,) if kernel == "peak" else ()
    return KernelRow(
        name, function, types, constants | absent, num_warps=warps, fp_fusion=False, no_fma=True, reads=reads
    )


def _sift_rows() -> Iterator[KernelRow]:
    for by_weight in (False, True):
        for number in PASSES:
            constants = _TILE | {"PARTS": 32, "BY_WEIGHT": by_weight, "PASS": number}
            for masked in (False, True):
                row = _row("sift", masked, _HEAT | _FILTERS, constants)
                yield replace(row, name=f"{row.name}: {'top-p' if by_weight else 'top-k'}, pass {number}")


_TILE: dict[str, object] = {"LANES": 1, "BLOCK": BLOCK}
_DRAW: dict[str, object] = {"LANES": 1, "BLOCK": 256, "PARTS": 32}
_PEAKS = {"tops": "*fp32", "top_ids": "*i32"}
_BESTS = {"scores": "*fp32", "score_ids": "*i32"}
_HEAT = {"tops": "*fp32", "temperatures": "*fp32"}
_FILTERS = {"top_k": "*i64", "top_p": "*fp64", "least": "*fp32", "memory": "*i64", "kept": "*i32"}
_KEYED = _HEAT | {"keys": "*i64"} | _BESTS
ROWS = (
    *(_row("peak", masked, _PEAKS, _TILE) for masked in (False, True)),
    *_sift_rows(),
    KernelRow(
        "conclude",
        _FUNCTIONS["conclude"],
        _HEAT | {"top_p": "*fp64", "memory": "*i64", "out": "*i32", "count": "i32"},
        {"PARTS": 32, "LANES": 1},
        num_warps=SIFT_WARPS,
        fp_fusion=False,
        no_fma=True,
    ),
    *(_row("draw", masked, _KEYED, _DRAW | {"limit": None}) for masked in (False, True)),
    *(_row("draw", masked, _KEYED | {"limit": "*i32"}, _DRAW) for masked in (False, True)),
    KernelRow(
        "settle",
        _FUNCTIONS["settle"],
        _PEAKS | _BESTS | {"temperatures": "*fp32", "out": "*i64", "count": "i32"},
        {"PARTS": 32, "LANES": 1},
        fp_fusion=False,
        no_fma=True,
    ),
)
