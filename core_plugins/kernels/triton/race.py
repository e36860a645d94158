"""The sampler: the tokens of `core.sampling`'s race, bit for bit, with its filters and with token masks.

Owns: the four kernels of a race and their launches. Never does: decide what a request asks for. Called by: the provider.

peak:   of each part of each row, the largest logit that may come, its lowest id, and whether a logit is not finite.
limits: of each row with filters, the smallest score that passes min-p, top-k and top-p. A score is a whole number that
        rises with z = (logit - largest) / T. How many candidates, or how much probability, lies at or above a score is
        counted exactly; the limit is found by halving the range 32 times.
draw:   of each part, the best z - ln E and its lowest id.
settle: of each row, the best of its parts.

Programs take `LANES` rows at once, one on a GPU; the interpreter is quicker with more.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from core_plugins.kernels.triton import noise, portable
from core_plugins.kernels.triton.catalog import KernelRow
from core_plugins.kernels.triton.chips import INTERPRETER
from core_plugins.kernels.triton.launch import blocks, chip_of, options, power_of_two

NO_ID = tl.constexpr(2**31 - 1)
NO_LIMIT = tl.constexpr(-(2**31))
LOWEST_KEY = tl.constexpr(-2139095040)
"""The score of the lowest finite number."""
FARTHEST = tl.constexpr(-26.1)
"""No candidate whose z is below can win: this is more than the whole range of the noise."""
MOST_PARTS = 64
STEPS = ("logits_stride", "vocab_size", "count", "part_size", "mask_stride")


@triton.jit
def _allowed(
    words: tl.tensor, mask_row: tl.tensor, ids: tl.tensor, inside: tl.tensor, mask_stride: tl.tensor
) -> tl.tensor:
    """Whether tokens may come; mask_row: of each row of a tile its bitmask, below 0: all may."""
    masked = inside & (mask_row >= 0)
    word = tl.load(words + mask_row * mask_stride + (ids >> 5), mask=masked, other=-1)
    return ((word >> (ids & 31)) & 1) != 0


@triton.jit(do_not_specialize=STEPS)
def peak(
    logits: tl.tensor,
    which: tl.tensor,
    words: tl.tensor,
    mask_index: tl.tensor,
    tops: tl.tensor,
    top_ids: tl.tensor,
    logits_stride: int,
    vocab_size: int,
    count: int,
    part_size: int,
    mask_stride: int,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Program (rows, part) writes float32 tops [parts, count], +inf where a logit is not finite, and top_ids int32."""
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    real = lane < count
    part = tl.program_id(1)
    row = tl.load(which + lane, mask=real, other=0)
    best = tl.full([LANES], float("-inf"), tl.float32)
    best_id = tl.full([LANES], NO_ID, tl.int32)
    is_bad = tl.zeros([LANES], tl.int32)
    if words is not None:
        mask_row = tl.load(mask_index + lane, mask=real, other=-1)
    for start in range(part * part_size, tl.minimum((part + 1) * part_size, vocab_size), BLOCK):
        ids = start + tl.arange(0, BLOCK)
        inside = real[:, None] & (ids < vocab_size)[None, :]
        place = logits + row[:, None] * logits_stride + ids[None, :]
        logit = tl.load(place, mask=inside, other=float("-inf"))
        odd = (logit != logit) | (logit == float("inf"))
        is_bad = tl.maximum(is_bad, tl.max(odd.to(tl.int32), axis=1))
        if words is not None:
            may = _allowed(words, mask_row[:, None], ids[None, :], inside, mask_stride)
            logit = tl.where(may, logit, float("-inf"))
        logit = tl.where(odd, float("-inf"), logit)
        top = tl.max(logit, axis=1)
        at_top = (logit == top[:, None]) & inside
        top_id = tl.min(tl.where(at_top, ids[None, :], NO_ID), axis=1)
        best_id = tl.where(top > best, top_id, best_id)
        best = tl.maximum(best, top)
    best = tl.where(is_bad > 0, float("inf"), best)
    tl.store(tops + part * count + lane, best, mask=real)
    tl.store(top_ids + part * count + lane, best_id, mask=real)


@triton.jit
def _largest(tops: tl.tensor, lane: tl.tensor, real: tl.tensor, count: tl.tensor, PARTS: tl.constexpr) -> tl.tensor:
    """The largest logit of each row, +inf where one of its logits is not finite."""
    best = tl.load(tops + lane, mask=real, other=0.0)
    for part in range(1, PARTS):
        best = tl.maximum(best, tl.load(tops + part * count + lane, mask=real, other=0.0))
    return best


@triton.jit
def _distance(logit: tl.tensor, top: tl.tensor, heat: tl.tensor) -> tl.tensor:
    """z of a tile: (logit - largest) / T."""
    z = portable.div(logit - top[:, None], tl.zeros_like(logit) + heat[:, None])
    return tl.where(z == 0.0, 0.0, z)  # no negative zero


@triton.jit
def _score(z: tl.tensor) -> tl.tensor:
    """A whole number that rises with z: int32."""
    bits = z.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def weight(z: tl.tensor) -> tl.tensor:
    """e^z in multiples of 2^-30, rounded down, int64: `core.sampling.filters.weights`."""
    x = tl.maximum(z * 1.4426950216293335, -64.0)
    whole = (x + 12582912.0) - 12582912.0  # 1.5 * 2^23: the sum rounds to the nearest integer
    fraction = x - whole
    power = tl.full(z.shape, 0.0013264723820611835, tl.float32)
    power = power * fraction + 0.009671512991189957
    power = power * fraction + 0.05550733581185341
    power = power * fraction + 0.24022242426872253
    power = power * fraction + 0.6931470036506653
    power = power * fraction + 1.0
    exponent = whole.to(tl.int32) + (30 + 127)
    scaled = power * (exponent << 23).to(tl.float32, bitcast=True)
    return scaled.to(tl.int64)


@triton.jit
def _tile(
    logits: tl.tensor,
    row: tl.tensor,
    ids: tl.tensor,
    inside: tl.tensor,
    logits_stride: tl.tensor,
    words: tl.tensor,
    mask_row: tl.tensor,
    mask_stride: tl.tensor,
) -> tl.tensor:
    """Logits of rows [LANES] and ids [BLOCK], -inf where a token may not come."""
    logit = tl.load(logits + row[:, None] * logits_stride + ids[None, :], mask=inside, other=float("-inf"))
    if words is not None:
        may = _allowed(words, mask_row[:, None], ids[None, :], inside, mask_stride)
        logit = tl.where(may, logit, float("-inf"))
    return logit


@triton.jit(do_not_specialize=STEPS)
def limits(
    logits: tl.tensor,
    which: tl.tensor,
    words: tl.tensor,
    mask_index: tl.tensor,
    tops: tl.tensor,
    temperatures: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    least: tl.tensor,
    out: tl.tensor,
    logits_stride: int,
    vocab_size: int,
    count: int,
    part_size: int,
    mask_stride: int,
    PARTS: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Program (rows) writes the smallest score that passes, int32 [count]."""
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    real = lane < count
    row = tl.load(which + lane, mask=real, other=0)
    mask_row = row
    if words is not None:
        mask_row = tl.load(mask_index + lane, mask=real, other=-1)
    heat = tl.load(temperatures + lane, mask=real, other=0.0)
    most = tl.load(top_k + lane, mask=real, other=0)
    share = tl.load(top_p + lane, mask=real, other=1.0)
    smallest = tl.load(least + lane, mask=real, other=float("-inf"))
    smallest = tl.where(smallest == 0.0, 0.0, smallest)
    first = tl.maximum(_score(smallest), LOWEST_KEY)
    top = _largest(tops, lane, real, count, PARTS)
    is_hot = real & (heat > 0.0) & (top > float("-inf")) & (top < float("inf"))
    is_filtered = is_hot & ((most > 0) | (share < 1.0) | (smallest > -3.4028234663852886e38))
    limit = tl.where(is_filtered, first, NO_LIMIT).to(tl.int64)
    # Two rounds: the most likely ones by number, then by their probability among those.
    for by_weight in tl.static_range(2):
        if by_weight:
            takes_part = is_filtered & (share < 1.0)
        else:
            takes_part = is_filtered & (most > 0)
        if tl.max(takes_part.to(tl.int32), axis=0) > 0:
            low = limit
            high = tl.zeros([LANES], tl.int64)
            target = most.to(tl.float64)
            if by_weight:
                # the first count is of all that are left
                target = tl.zeros([LANES], tl.float64)
            for turn in range(33):
                middle = low + (high - low + 1) // 2
                if turn == 0:
                    middle = low
                total = tl.zeros([LANES], tl.int64)
                for start in range(0, vocab_size, BLOCK):
                    ids = start + tl.arange(0, BLOCK)
                    inside = takes_part[:, None] & (ids < vocab_size)[None, :]
                    logit = _tile(logits, row, ids, inside, logits_stride, words, mask_row, mask_stride)
                    z = _distance(logit, top, tl.where(takes_part, heat, 1.0))
                    passes = inside & (_score(z) >= tl.maximum(middle, LOWEST_KEY)[:, None])
                    if by_weight:
                        total += tl.sum(tl.where(passes, weight(z), 0), axis=1)
                    else:
                        total += tl.sum(passes.to(tl.int64), axis=1)
                if turn == 0:
                    if by_weight:
                        target = tl.maximum(share * total.to(tl.float64), 1.0)
                else:
                    reaches = total.to(tl.float64) >= target
                    low = tl.where(reaches, middle, low)
                    high = tl.where(reaches, high, middle - 1)
            limit = tl.where(takes_part, low, limit)
    tl.store(out + lane, limit.to(tl.int32), mask=real)


@triton.jit
def _better(
    best: tl.tensor, best_id: tl.tensor, scores: tl.tensor, ids: tl.tensor, takes_part: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """The best of each row so far and its lowest id, beside a tile of scores."""
    scores = tl.where(takes_part, scores, float("-inf"))
    top = tl.max(scores, axis=1)
    at_top = takes_part & (scores == top[:, None])
    top_id = tl.min(tl.where(at_top, ids[None, :], NO_ID), axis=1)
    is_better = (top > best) | ((top == best) & (top_id < best_id))
    return tl.where(is_better, top, best), tl.where(is_better, top_id, best_id)


@triton.jit(do_not_specialize=STEPS)
def draw(
    logits: tl.tensor,
    which: tl.tensor,
    words: tl.tensor,
    mask_index: tl.tensor,
    tops: tl.tensor,
    temperatures: tl.tensor,
    keys: tl.tensor,
    limit: tl.tensor,
    scores: tl.tensor,
    score_ids: tl.tensor,
    logits_stride: int,
    vocab_size: int,
    count: int,
    part_size: int,
    mask_stride: int,
    PARTS: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Program (rows, part) writes the best scores float32 [parts, count] and their ids int32; part_size: of four."""
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    real = lane < count
    part = tl.program_id(1)
    row = tl.load(which + lane, mask=real, other=0)
    mask_row = row
    if words is not None:
        mask_row = tl.load(mask_index + lane, mask=real, other=-1)
    heat = tl.load(temperatures + lane, mask=real, other=0.0)
    top = _largest(tops, lane, real, count, PARTS)
    is_hot = real & (heat > 0.0) & (top > float("-inf")) & (top < float("inf"))
    best = tl.full([LANES], float("-inf"), tl.float32)
    best_id = tl.full([LANES], NO_ID, tl.int32)
    if tl.max(is_hot.to(tl.int32), axis=0) > 0:
        least = tl.full([LANES], NO_LIMIT, tl.int32)
        if limit is not None:
            least = tl.load(limit + lane, mask=real, other=0)
        key = keys + lane * 5
        low = tl.load(key, mask=real, other=0).to(tl.uint32)[:, None]
        high = tl.load(key + 1, mask=real, other=0).to(tl.uint32)[:, None]
        index = tl.load(key + 2, mask=real, other=0).to(tl.uint32)[:, None]
        choice = tl.load(key + 3, mask=real, other=0).to(tl.uint32)[:, None]
        purpose = tl.load(key + 4, mask=real, other=0).to(tl.uint32)[:, None]
        divisor = tl.where(is_hot, heat, 1.0)
        for start in range(part * part_size, tl.minimum((part + 1) * part_size, vocab_size), 4 * BLOCK):
            group = (start >> 2) + tl.arange(0, BLOCK)
            counter = group[None, :].to(tl.uint32) + tl.zeros([LANES, BLOCK], tl.uint32)
            first, second, third, fourth = noise.philox(counter, index, choice, purpose, low, high)
            for word in tl.static_range(4):
                if word == 0:
                    random = first
                elif word == 1:
                    random = second
                elif word == 2:
                    random = third
                else:
                    random = fourth
                ids = group * 4 + word
                inside = is_hot[:, None] & (ids < vocab_size)[None, :]
                logit = _tile(logits, row, ids, inside, logits_stride, words, mask_row, mask_stride)
                z = _distance(logit, top, divisor)
                takes_part = inside & (z >= FARTHEST) & (_score(z) >= least[:, None])
                score = z + noise.gumbel(random)
                best, best_id = _better(best, best_id, score, ids, takes_part)
    tl.store(scores + part * count + lane, best, mask=real)
    tl.store(score_ids + part * count + lane, best_id, mask=real)


@triton.jit(do_not_specialize=("count",))
def settle(
    tops: tl.tensor,
    top_ids: tl.tensor,
    scores: tl.tensor,
    score_ids: tl.tensor,
    temperatures: tl.tensor,
    out: tl.tensor,
    count: int,
    PARTS: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """Program (rows) writes the tokens, int64 [count]; -1 where there is none."""
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    real = lane < count
    heat = tl.load(temperatures + lane, mask=real, other=0.0)
    top = _largest(tops, lane, real, count, PARTS)
    is_sound = (top > float("-inf")) & (top < float("inf"))
    best = tl.full([LANES], float("-inf"), tl.float32)
    best_id = tl.full([LANES], NO_ID, tl.int32)
    for part in range(PARTS):
        place = part * count + lane
        hot_score = tl.load(scores + place, mask=real, other=0.0)
        cold_score = tl.load(tops + place, mask=real, other=0.0)
        score = tl.where(heat > 0.0, hot_score, cold_score)
        hot_id = tl.load(score_ids + place, mask=real, other=0)
        cold_id = tl.load(top_ids + place, mask=real, other=0)
        token = tl.where(heat > 0.0, hot_id, cold_id)
        # parts rise with their ids: the first of equals stays
        is_better = score > best
        best = tl.where(is_better, score, best)
        best_id = tl.where(is_better, token, best_id)
    tl.store(out + lane, tl.where(is_sound, best_id, -1).to(tl.int64), mask=real)


def race(
    logits: Tensor,
    which: Tensor,
    keys: Tensor,
    temperatures: Tensor,
    out: Tensor,
    filters: tuple[Tensor, Tensor, Tensor] | None = None,
    masks: tuple[Tensor, Tensor] | None = None,
) -> None:
    """The `MaskedRaceKernel` contract, of tensors on one device."""
    count = len(which)
    if not count:
        return
    vocab_size = logits.shape[1]
    lanes = min(power_of_two(count), 2048) if chip_of(logits.device) == INTERPRETER else 1
    block = min(power_of_two(vocab_size), 1024)
    parts = min(blocks(vocab_size, 4 * block), MOST_PARTS)
    part_size = 4 * block * blocks(vocab_size, 4 * block * parts)
    words, mask_index, mask_stride = (None, None, 0) if masks is None else (*masks, masks[0].stride(0))
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
    if filters is not None:
        limit = torch.empty(count, dtype=torch.int32, device=logits.device)
        wide = options(16, fusion=False)
        limits[grid[:1]](*row, tops, temperatures, *filters, limit, *sizes, PARTS=parts, **tile, **wide)
    quarter = {"LANES": lanes, "BLOCK": max(block // 4, 1)}
    draw[grid](*row, tops, temperatures, keys, limit, scores, score_ids, *sizes, PARTS=parts, **quarter, **exact)
    settle[grid[:1]](tops, top_ids, scores, score_ids, temperatures, out, count, PARTS=parts, LANES=lanes, **exact)


def _row(kernel: str, masked: bool, signature: dict[str, str], constants: dict[str, object]) -> KernelRow:
    """A row of a kernel that reads logits."""
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
    warps = 16 if kernel == "limits" else 4
    function = f"{__name__}:{kernel}"
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
        f"{__name__}:settle",
        _PEAKS | _BESTS | {"temperatures": "*fp32", "out": "*i64", "count": "i32"},
        {"PARTS": 32, "LANES": 1},
        fp_fusion=False,
        no_fma=True,
    ),
)
