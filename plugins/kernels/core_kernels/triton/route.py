"""The choice of experts for each token.

Owns: the kernel and its launch; `core_runtime.layers.experts.route` defines the choice. Never does: run experts.
Called by: the provider.

A program handles one token: its experts form a tile, with a row per group. The best are picked one after another, the
lowest id first among equals.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from core_kernels.triton import portable
from core_kernels.triton.compiling.catalog import KernelRow
from core_kernels.triton.compiling.launch import options, power_of_two
from core_runtime.specs.routing_spec import RoutingSpec

STEPS = ("logits_stride", "ids_stride", "weights_stride")
LEAST = tl.constexpr(-3.4028234663852886e38)
NO_PLACE = tl.constexpr(2**31 - 1)
MINUS = tl.constexpr(float("-inf"))


@triton.jit
def _best(values: tl.tensor, left: tl.tensor, place: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Return the largest remaining value, and the lowest place that has it. Values must not be NaN."""
    best = tl.max(tl.where(left, values, MINUS))
    at = tl.min(tl.where(left & (values == best), place, NO_PLACE))
    return best, at


@triton.jit
def _ordered(values: tl.tensor) -> tl.tensor:
    """Make values comparable: NaN becomes the least, infinities become the largest finite numbers."""
    values = tl.where(values == values, values, LEAST)
    return tl.minimum(tl.maximum(values, LEAST), -LEAST)


@triton.jit
def _shares(logits: tl.tensor, inside: tl.tensor) -> tl.tensor:
    """Return the softmax over the lanes inside."""
    largest = tl.max(tl.where(inside, logits, MINUS))
    powers = tl.where(inside, tl.exp(logits - largest), 0.0)
    return portable.div(powers, tl.zeros_like(powers) + tl.sum(powers))


@triton.jit
def _in_best_groups(
    choice: tl.tensor, inside: tl.tensor, place: tl.tensor, TOP_GROUPS: tl.constexpr, BEST_TWO: tl.constexpr
) -> tl.tensor:
    """Whether each expert belongs to one of the best groups, [groups, experts]. choice: -inf outside."""
    rank = tl.max(choice, 1)
    if BEST_TWO:
        is_top = inside & (choice == rank[:, None])
        first = tl.min(tl.where(is_top, place, NO_PLACE), 1)
        others = inside & (place != first[:, None])
        second = tl.max(tl.where(others, choice, MINUS), 1)
        rank = rank + tl.where(tl.max(others.to(tl.int32), 1) > 0, second, 0.0)
    number = tl.arange(0, choice.shape[0])
    left = tl.max(inside.to(tl.int32), 1) > 0
    kept = left & (number < 0)
    for _turn in range(TOP_GROUPS):
        _best_rank, at = _best(rank, left, number)
        kept = kept | (number == at)
        left = left & (number != at)
    return inside & kept[:, None]


@triton.jit(do_not_specialize=STEPS)
def choose(
    logits: tl.tensor,
    bias: tl.tensor,
    ids: tl.tensor,
    weights: tl.tensor,
    logits_stride: int,
    ids_stride: int,
    weights_stride: int,
    factor: float,
    epsilon: float,
    TOP_K: tl.constexpr,
    SIGMOID: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    BEST_TWO: tl.constexpr,
    GROUPS_PADDED: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    K_PADDED: tl.constexpr,
) -> None:
    """Choose the experts of one token. GROUPS groups of SIZE experts; GROUPS 1: no group limit. bias may be absent."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, GROUPS_PADDED)[:, None]
    nth = tl.arange(0, SIZE_PADDED)[None, :]
    inside = (group < GROUPS) & (nth < SIZE)
    place = group * SIZE + nth
    wide = portable.widen(tl.load(logits + row * logits_stride + place, mask=inside, other=0.0))
    scores = portable.sigmoid(wide) if SIGMOID else _shares(wide, inside)
    choice = wide  # logits, not scores: scores increase with them, but rounding may make different ones equal
    if bias is not None:
        choice = scores + tl.load(bias + place, mask=inside, other=0.0)
    elif BEST_TWO:
        choice = scores
    choice = tl.where(inside, _ordered(choice), MINUS)
    if GROUPS > 1:
        choice = tl.where(_in_best_groups(choice, inside, place, TOP_GROUPS, BEST_TWO), choice, MINUS)

    column = tl.arange(0, K_PADDED)
    chosen = tl.zeros([K_PADDED], tl.float32)
    left = inside
    for turn in range(TOP_K):
        _best_choice, at = _best(choice, left, place)
        is_chosen = place == at
        score = tl.sum(tl.where(is_chosen & inside, scores, 0.0))
        chosen = tl.where(column == turn, score, chosen)
        left = left & (place != at)
        tl.store(ids + row * ids_stride + turn, at.to(tl.int64))
    if RENORMALIZE:
        total = tl.sum(chosen) + epsilon
        chosen = portable.div(chosen, tl.zeros_like(chosen) + total)
    tl.store(weights + row * weights_stride + column, chosen * factor, mask=column < TOP_K)


@triton.jit(do_not_specialize=STEPS)
def mix_sparsely(
    logits: tl.tensor,
    ids: tl.tensor,
    weights: tl.tensor,
    logits_stride: int,
    ids_stride: int,
    weights_stride: int,
    factor: float,
    distance: float,
    TOP_K: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
) -> None:
    """Choose the experts of one token with the scores `sparse_mixer` of `RoutingSpec`. distance: twice its jitter."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, SIZE_PADDED)
    inside = place < SIZE
    wide = portable.widen(tl.load(logits + row * logits_stride + place, mask=inside, other=0.0))
    choice = _ordered(wide)
    left = inside
    for turn in range(TOP_K):
        _best_choice, at = _best(choice, left, place)
        top = tl.sum(tl.where(place == at, wide, 0.0))
        size = tl.maximum(tl.abs(wide), top)
        gap = portable.div(tl.zeros_like(wide) + top - wide, size)
        near = left & ~(gap > distance)
        share = tl.sum(tl.where(place == at, _shares(wide, near), 0.0))
        tl.store(ids + row * ids_stride + turn, at.to(tl.int64))
        tl.store(weights + row * weights_stride + turn, share * factor)
        left = left & (place != at)


def choose_experts(logits: Tensor, routing: RoutingSpec, bias: Tensor | None, ids: Tensor, weights: Tensor) -> None:
    """Choose experts: the `RouteKernel` contract. Raises ValueError for a contradictory spec."""
    problem = routing.problem(bias is not None)
    if problem is not None:
        raise ValueError(problem)
    tokens, experts = logits.shape
    if not tokens:
        return
    steps = (logits.stride(0), ids.stride(0), weights.stride(0))
    launched = options(_warps(experts), fusion=False)
    if routing.scores == "sparse_mixer":
        sizes = {"TOP_K": routing.top_k, "SIZE": experts, "SIZE_PADDED": power_of_two(experts)}
        distance = 2 * routing.jitter
        mix_sparsely[(tokens,)](logits, ids, weights, *steps, routing.factor, distance, **sizes, **launched)
        return
    constants = _constants(routing, experts)
    choose[(tokens,)](logits, bias, ids, weights, *steps, routing.factor, routing.epsilon, **constants, **launched)


def _constants(routing: RoutingSpec, experts: int) -> dict[str, Any]:
    size = experts // routing.groups
    return {
        "TOP_K": routing.top_k,
        "SIGMOID": routing.scores == "sigmoid",
        "RENORMALIZE": routing.renormalize,
        "GROUPS": routing.groups,
        "SIZE": size,
        "TOP_GROUPS": routing.top_groups,
        "BEST_TWO": routing.group_rank == "best_two",
        "GROUPS_PADDED": power_of_two(routing.groups),
        "SIZE_PADDED": power_of_two(size),
        "K_PADDED": power_of_two(routing.top_k),
    }


def _warps(experts: int) -> int:
    return 1 if experts <= 128 else 4


ROUTINGS = (
    ("Mixtral", RoutingSpec(2), 8, False),
    ("Qwen 3", RoutingSpec(8), 128, False),
    ("gpt-oss", RoutingSpec(4), 32, False),
    ("GLM 4.5", RoutingSpec(8, "sigmoid"), 160, True),
    ("DeepSeek V3", RoutingSpec(8, "sigmoid", factor=2.5, groups=8, top_groups=4, group_rank="best_two"), 256, True),
)
"""Name, routing, number of experts, and whether there is a bias, for widely used models."""


def _row(kind: str, name: str, routing: RoutingSpec, experts: int, biased: bool) -> KernelRow:
    signature = {"logits": f"*{kind}", "ids": "*i64", "weights": "*fp32"}
    signature |= dict.fromkeys(STEPS, "i32") | {"factor": "fp32", "epsilon": "fp32"}
    constants = _constants(routing, experts)
    if biased:
        signature["bias"] = "*fp32"
    else:
        constants["bias"] = None
    words = f"choice of experts as {name}, of {kind}"
    return KernelRow(words, f"{__name__}:choose", signature, constants, num_warps=_warps(experts), fp_fusion=False)


def _sparse_row(kind: str) -> KernelRow:
    signature = {"logits": f"*{kind}", "ids": "*i64", "weights": "*fp32"}
    signature |= dict.fromkeys(STEPS, "i32") | {"factor": "fp32", "distance": "fp32"}
    constants = {"TOP_K": 2, "SIZE": 16, "SIZE_PADDED": 16}
    words = f"choice of experts as Phi 3.5, of {kind}"
    return KernelRow(words, f"{__name__}:mix_sparsely", signature, constants, num_warps=1, fp_fusion=False)


ROWS = (
    *(_row("bf16", *routing) for routing in ROUTINGS),
    *(_row("fp32", *ROUTINGS[index]) for index in (1, 4)),
    _sparse_row("bf16"),
)
