"""Log-probabilities of the chosen token and of the most likely ones.

Owns: the kernel and its launch. Never does: sample. Called by: the provider.

A program handles a whole row: its powers are summed in float64, block by block, and the most likely tokens are picked
one after another, the lowest id first among equals.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from core_kernels.triton.compiling.catalog import KernelRow
from core_kernels.triton.compiling.launch import options, power_of_two

BLOCK = 4096
STEPS = ("logits_stride", "vocab_size", "width")
NO_ID = tl.constexpr(2**31 - 1)


@triton.jit(do_not_specialize=STEPS)
def tell(
    logits: tl.tensor,
    which: tl.tensor,
    chosen: tl.tensor,
    counts: tl.tensor,
    ids: tl.tensor,
    values: tl.tensor,
    ranks: tl.tensor,
    logits_stride: int,
    vocab_size: int,
    width: int,
    BLOCK: tl.constexpr,
) -> None:
    """Compute one row's logprobs: program (row) writes ids int64 and values float64 [rows, width], ranks int64 [rows]."""
    row = tl.program_id(0)
    place = logits + tl.load(which + row) * logits_stride
    token = tl.load(chosen + row)
    own = tl.load(place + token)
    at = tl.arange(0, BLOCK)
    largest = tl.full([], float("-inf"), tl.float32)
    larger = tl.full([], 0, tl.int32)
    for start in range(0, vocab_size, BLOCK):
        inside = start + at < vocab_size
        logit = tl.load(place + start + at, mask=inside, other=float("-inf"))
        largest = tl.maximum(largest, tl.max(logit, axis=0))
        larger += tl.sum((logit > own).to(tl.int32), axis=0)
    total = tl.full([], 0.0, tl.float64)
    for start in range(0, vocab_size, BLOCK):
        inside = start + at < vocab_size
        logit = tl.load(place + start + at, mask=inside, other=float("-inf"))
        total += tl.sum(tl.exp(logit - largest).to(tl.float64), axis=0)
    normalizer = largest.to(tl.float64) + tl.log(total)
    tl.store(ids + row * width, token)
    tl.store(values + row * width, own.to(tl.float64) - normalizer)
    tl.store(ranks + row, (larger + 1).to(tl.int64))

    last = tl.full([], float("inf"), tl.float32)
    last_id = tl.full([], -1, tl.int32)
    for column in range(1, tl.load(counts + row).to(tl.int32) + 1):
        best = tl.full([], float("-inf"), tl.float32)
        best_id = tl.full([], NO_ID, tl.int32)
        for start in range(0, vocab_size, BLOCK):
            token_ids = start + at
            inside = token_ids < vocab_size
            logit = tl.load(place + token_ids, mask=inside, other=float("-inf"))
            comes_later = (logit < last) | ((logit == last) & (token_ids > last_id))
            left = inside & comes_later
            top = tl.max(tl.where(left, logit, float("-inf")), axis=0)
            top_id = tl.min(tl.where(left & (logit == top), token_ids, NO_ID), axis=0)
            is_better = (top > best) | ((top == best) & (top_id < best_id))
            best = tl.where(is_better, top, best)
            best_id = tl.where(is_better, top_id, best_id)
        tl.store(ids + row * width + column, best_id.to(tl.int64))
        tl.store(values + row * width + column, best.to(tl.float64) - normalizer)
        last = best
        last_id = best_id


def tell_logprobs(
    logits: Tensor, which: Tensor, chosen: Tensor, counts: Tensor, ids: Tensor, values: Tensor, ranks: Tensor
) -> None:
    """Compute logprobs with all tensors on one device: the `LogprobsKernel` contract."""
    rows, width = ids.shape
    vocab_size = logits.shape[1]
    block = min(power_of_two(vocab_size), BLOCK)
    sizes = (logits.stride(0), vocab_size, width)
    if rows:
        tell[(rows,)](logits, which, chosen, counts, ids, values, ranks, *sizes, BLOCK=block, **options(8))


ROWS = (
    KernelRow(
        "logprobs",
        f"{__name__}:tell",
        {
            "logits": "*fp32",
            "which": "*i64",
            "chosen": "*i64",
            "counts": "*i64",
            "ids": "*i64",
            "values": "*fp64",
            "ranks": "*i64",
            **dict.fromkeys(STEPS, "i32"),
        },
        {"BLOCK": BLOCK},
        num_warps=8,
    ),
)
