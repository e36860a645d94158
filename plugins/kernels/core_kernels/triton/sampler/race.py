"""The sampler: the tokens of `core_runtime.sampling`'s race, bit for bit, with its filters and with token masks.

Owns: the launches of a race's four kernels, and their catalog rows. Never does: interpret a request's parameters.
Called by: the provider.

peak: of each part of each row, the largest logit that may come, its lowest id, and whether a logit is not finite.
limits: of each row with filters, the smallest score that passes min-p, top-k and top-p.
draw: of each part, the best z - ln E and its lowest id.
settle: of each row, the best of its parts.

Programs take `LANES` rows at once, one on a GPU; the interpreter is quicker with more.
"""

from __future__ import annotations

from typing import Any

import torch

from core_kernels.triton.compiling.catalog import KernelRow
from core_kernels.triton.compiling.chips import INTERPRETER
from core_kernels.triton.compiling.launch import blocks, chip_of, options, power_of_two
from core_kernels.triton.sampler.candidates import STEPS
from core_kernels.triton.sampler.race_draw import draw
from core_kernels.triton.sampler.race_limits import limits
from core_kernels.triton.sampler.race_peak import peak, settle
from core_runtime.contracts import RaceCall

MOST_PARTS = 64
LIMITS_WARPS = 16
"""Many warps, because one program counts a whole row."""


def race(*arguments: Any) -> None:
    """Sample tokens with all tensors on one device: the `MaskedRaceKernel` contract."""
    call = RaceCall(*arguments)
    logits, which, heat = call.logits, call.which, call.temperatures
    count = len(which)
    if not count:
        return
    vocab_size = logits.shape[1]
    lanes = min(power_of_two(count), 2048) if chip_of(logits.device) == INTERPRETER else 1
    block = min(power_of_two(vocab_size), 1024)
    parts = min(blocks(vocab_size, 4 * block), MOST_PARTS)
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
        limit = torch.empty(count, dtype=torch.int32, device=logits.device)
        wide = options(LIMITS_WARPS, fusion=False)
        limits[grid[:1]](*row, tops, heat, *call.filters, limit, *sizes, PARTS=parts, **tile, **wide)
    quarter = {"LANES": lanes, "BLOCK": max(block // 4, 1)}
    draw[grid](*row, tops, heat, call.keys, limit, scores, score_ids, *sizes, PARTS=parts, **quarter, **exact)
    settle[grid[:1]](tops, top_ids, scores, score_ids, heat, call.out, count, PARTS=parts, LANES=lanes, **exact)


PACKAGE = "core_kernels.triton.sampler"
_FUNCTIONS = {
    "peak": f"{PACKAGE}.race_peak:peak",
    "limits": f"{PACKAGE}.race_limits:limits",
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
    warps = LIMITS_WARPS if kernel == "limits" else 4
    function = _FUNCTIONS[kernel]
    return KernelRow(name, function, types, constants | absent, num_warps=warps, fp_fusion=False, no_fma=True)


_TILE: dict[str, object] = {"LANES": 1, "BLOCK": 1024}
_DRAW: dict[str, object] = {"LANES": 1, "BLOCK": 256, "PARTS": 32}
_PEAKS = {"tops": "*fp32", "top_ids": "*i32"}
_BESTS = {"scores": "*fp32", "score_ids": "*i32"}
_HEAT = {"tops": "*fp32", "temperatures": "*fp32"}
_FILTERS = {"top_k": "*i64", "top_p": "*fp64", "least": "*fp32", "out": "*i32"}
_KEYED = _HEAT | {"keys": "*i64"} | _BESTS
ROWS = (
    *(_row("peak", masked, _PEAKS, _TILE) for masked in (False, True)),
    *(_row("limits", masked, _HEAT | _FILTERS, _TILE | {"PARTS": 32}) for masked in (False, True)),
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
