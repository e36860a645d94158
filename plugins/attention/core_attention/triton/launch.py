"""Launches the attention kernels for a layer and a step.

Owns: grids, the division of a step's keys among programs, and the buffers for partial results. Never does: check a
tensor.
Called by: `backend.py`.

A step with few rows and long sequences has too few programs to occupy a device, so each section of keys may get its own
program. This split changes no bit, and is decided from shapes alone, so it can be recorded in a graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import triton
from torch import Tensor

from core_attention.triton import spans
from core_attention.triton.attend_kernel import attend
from core_attention.triton.attended import Attended
from core_attention.triton.layer import Layer, Writable, merge_constants
from core_attention.triton.merge_kernel import merge
from core_attention.triton.turn_kernel import turn_and_write
from core_attention.triton.write_kernel import write
from core_runtime.contracts import BatchView, HeadTurn

MAX_ROOM: Final = 64 << 20
"""Limit in bytes on the partial results between the two kernels of a split step."""


@dataclass(frozen=True, slots=True)
class Room:
    """Partial results of a split step, float32.

    sums: [T, Hq, SLOTS, Dv].
    maxima, weights: [T, Hq, SLOTS].
    """

    sums: Tensor
    maxima: Tensor
    weights: Tensor


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


def attend_rows(layer: Layer, q: Tensor, q_rest: Tensor, view: BatchView, out: Tensor, wanted: int) -> None:
    """Compute out [T, Hq, Dv] of queries in two parts. wanted: programs that occupy the device."""
    constants = layer.attended(q.dtype)
    own: Attended = constants["LAYER"]
    tiles = num_tiles(own, view.num_tokens, view.num_seqs)
    splits = num_splits(view, tiles * own.lanes, own.heads * own.value_size, wanted)
    room = _room(view.num_tokens, own.heads, own.value_size, q.device) if splits > 1 else None
    absent = layer.scales  # dtype placeholder for absent tensors; never read
    sinks = absent if layer.params.sinks is None else layer.params.sinks
    slopes = absent if layer.params.slopes is None else layer.params.slopes
    parts = (absent, absent, absent) if room is None else (room.sums, room.maxima, room.weights)
    tails = view.seq_lens if view.tails is None else view.tails
    depth = 0 if view.tails is None else view.tails.shape[1]
    step = (view.cu_seqlens_q, view.seq_lens, view.block_table, tails)
    strides = (*q.stride()[:2], *q_rest.stride()[:2], *out.stride()[:2])
    attend[(tiles, own.lanes, splits)](
        q,
        q_rest,
        out,
        layer.cache,
        layer.scales,
        *step,
        sinks,
        slopes,
        *parts,
        view.num_seqs,
        view.block_table.stride(0),
        depth,
        *strides,
        *layer.scalars,
        **constants,
        HAS_TAILS=view.tails is not None,
        SPLIT=room is not None,
    )
    if room is None:
        return
    merge[(view.num_tokens, own.heads)](
        *parts,
        out,
        view.cu_seqlens_q,
        view.seq_lens,
        sinks,
        view.num_seqs,
        *out.stride()[:2],
        layer.scalars.v_scale,
        **merge_constants(own),
    )


def num_tiles(own: Attended, num_tokens: int, num_seqs: int) -> int:
    """Return an upper limit on the tiles of rows of a step, for any sequences."""
    return num_tokens // own.queries + num_seqs


def num_splits(view: BatchView, programs: int, numbers: int, wanted: int) -> int:
    """Return the number of programs that divide the keys of a tile among them. numbers: size of a row's output."""
    room = 4 * view.num_tokens * numbers * spans.SLOTS.value
    if room > MAX_ROOM:
        return 1
    shortest_sections = -(-view.max_seq_len // spans.SPAN.value)
    most: int = min(spans.SECTIONS.value, shortest_sections)
    return max(1, min(most, -(-wanted // programs)))


def _room(rows: int, heads: int, value: int, device: torch.device) -> Room:
    slots = spans.SLOTS.value
    sums = torch.empty(rows, heads, slots, value, device=device)
    maxima = torch.empty(rows, heads, slots, device=device)
    return Room(sums, maxima, torch.empty_like(maxima))
