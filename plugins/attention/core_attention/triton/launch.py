"""Launches the attention kernels for a layer and a step.

Owns: the arguments of each launch. Never does: check a tensor, or divide the work (`plan.py` does).
Called by: `backend.py`.
"""

from __future__ import annotations

import triton
from torch import Tensor

from core_attention.triton.attend_kernel import attend
from core_attention.triton.layer import Layer, Writable, with_spans, with_tails
from core_attention.triton.plan import Step
from core_attention.triton.turn_kernel import turn_and_write
from core_attention.triton.write_kernel import write
from core_runtime.contracts import BatchView, HeadTurn


def write_rows(layer: Writable, k: Tensor, v: Tensor, view: BatchView) -> None:
    """Store k [T, Hkv, D] and v [T, Hkv, Dv] at the step's slots; slots of -1 are skipped."""
    constants = layer.written
    grid = (view.num_tokens, triton.cdiv(layer.layout.heads, constants["SIDE"]))
    strides = (k.stride(0), k.stride(1), v.stride(0), v.stride(1))
    scales = (layer.params.k_scale, layer.params.v_scale)
    write[grid](k, v, layer.cache, layer.scales, view.slot_mapping, *strides, *scales, **constants)


def turn_and_write_rows(
    layer: Writable, q: Tensor, k: Tensor, v: Tensor, turn: HeadTurn, positions: Tensor, view: BatchView
) -> None:
    """Normalize and rotate q [T, Hq, D] in place; store k, normalized and rotated, and v as `write_rows` does."""
    constants = layer.written
    side = constants["SIDE"]
    q_heads = q.shape[1]
    grid = (view.num_tokens, triton.cdiv(layer.layout.heads, side) + triton.cdiv(q_heads, side))
    strides = (*q.stride()[:2], *k.stride()[:2], *v.stride()[:2])
    weights = (turn.q_weight, turn.k_weight)
    turn_and_write[grid](
        q,
        k,
        v,
        layer.cache,
        layer.scales,
        view.slot_mapping,
        positions,
        turn.cos,
        turn.sin,
        *weights,
        *strides,
        *(_by_head(weight) for weight in weights),
        turn.eps,
        layer.params.k_scale,
        layer.params.v_scale,
        Q_HEADS=q_heads,
        HALF=turn.cos.shape[1],
        **constants,
    )


def _by_head(weight: Tensor | None) -> int:
    """Return the stride between the norm weights [D] of neighbouring heads; 0 where all heads share them."""
    return 0 if weight is None or weight.dim() == 1 else weight.stride(0)


def attend_rows(layer: Layer, q: Tensor, q_rest: Tensor, step: Step, out: Tensor) -> None:
    """Compute out [T, Hq, Dv] of queries in two parts."""
    view = step.view
    constants = layer.attended(q.dtype, view.max_query_len)
    if view.sees_to is not None:
        constants = with_spans(constants)
    plan = step.plan(constants["LAYER"])
    absent = layer.scales  # dtype placeholder for absent tensors; never read
    sinks = absent if layer.params.sinks is None else layer.params.sinks
    slopes = absent if layer.params.slopes is None else layer.params.slopes
    tails = view.seq_lens if view.tails is None else view.tails
    depth = 0 if view.tails is None else view.tails.shape[1]
    attend[(plan.programs,)](
        q,
        q_rest,
        out,
        layer.cache,
        layer.scales,
        plan.items,
        view.block_table,
        tails,
        sinks,
        slopes,
        plan.sums,
        plan.maxima,
        plan.weights,
        plan.arrived,
        view.block_table.stride(0),
        depth,
        *q.stride()[:2],
        *q_rest.stride()[:2],
        *out.stride()[:2],
        *layer.scalars,
        **(constants | {"HAS_TAILS": False} if view.tails is None else with_tails(constants)),
    )
