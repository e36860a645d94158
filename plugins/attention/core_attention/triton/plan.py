"""A step as attention's layers share it: its view, and lists of its work.

Owns: the limits of a list, and the buffers that a list and partial results take. Never does: read a length, since a
recorded step is replayed with other ones. Called by: `backend.py`, `launch.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from core_attention.triton import spans
from core_attention.triton.attended import Attended
from core_attention.triton.plan_kernel import plan
from core_attention.triton.work import FIELDS
from core_runtime.contracts import BatchView

MAX_ROOM: Final = 64 << 20
"""Limit in bytes on the partial results of divided tiles."""
PLAN_WARPS: Final = 8
"""Warps of the program that writes a list."""


class Limits(NamedTuple):
    """What a step of some shape can need, whatever its lengths.

    tiles: limit of the tiles' indices.
    items: length of the list.
    wanted: items among which the keys of the step are divided.
    room: rows for whose partial results there is room.
    """

    tiles: int
    items: int
    wanted: int
    room: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The work of a step for layers with the same parameters.

    items: int32 [1 + limit, FIELDS], see `work.Item`; the count is the first number. In a step with spans more rows follow,
        with the column `BatchView.sees_to`, whose place is the second number.
    arrived: int32 [room · lanes], keys of a divided tile that programs have finished; 0 between launches.
    sums: partial results, float32 [room, Hq, SLOTS, Dv]. maxima, weights: float32 [room, Hq, SLOTS].
    programs: of a launch.
    """

    items: Tensor
    arrived: Tensor
    sums: Tensor
    maxima: Tensor
    weights: Tensor
    programs: int


class Step:
    """A step's view, and its plans, each written at the first layer that needs it.

    wanted: programs that occupy the device.
    """

    def __init__(self, view: BatchView, wanted: int) -> None:
        self.view = view
        self._wanted = wanted
        self._plans: dict[Attended, Plan] = {}

    def plan(self, own: Attended) -> Plan:
        """Return the plan for layers with these parameters."""
        found = self._plans.get(own)
        if found is None:
            found = self._plans[own] = _plan(own, self.view, self._wanted)
        return found


def limits_of(own: Attended, view: BatchView, wanted: int) -> Limits:
    """Return the limits of a step. wanted: programs that occupy the device.

    A tile is divided by its share of the step's keys, so all divisions together add at most `wanted` items.
    """
    tiles = view.num_tokens // own.queries + view.num_seqs
    wanted = max(1, wanted // own.lanes)
    most: int = min(spans.RUNS.value, -(-view.max_seq_len // spans.SPAN.value))
    if wanted == 1 or most == 1:
        room = 0
    else:
        row = 4 * own.heads * spans.SLOTS.value * (own.value_size + 2)
        room = min(view.num_tokens, wanted * min(own.queries, view.max_query_len), MAX_ROOM // row)
    items = min(view.num_tokens, tiles) + min(wanted, room * (most - 1))
    return Limits(tiles, items, wanted, room)


def _items(count: int, view: BatchView) -> Tensor:
    """Return room for items, with the column of a step with spans after them."""
    fields, size = FIELDS.value, count * FIELDS.value
    num_more = 0 if view.sees_to is None else -(-view.num_tokens // fields)
    items = torch.empty(count + num_more, fields, dtype=torch.int32, device=view.seq_lens.device)
    if view.sees_to is not None:
        items[0, 1] = size
        items.view(-1)[size : size + view.num_tokens] = view.sees_to[: view.num_tokens]
    return items


def _plan(own: Attended, view: BatchView, wanted: int) -> Plan:
    limits = limits_of(own, view, wanted)
    device = view.seq_lens.device

    def integers(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32, device=device)

    items = _items(1 + limits.items, view)
    arrived = integers(limits.room * own.lanes)
    slots = (limits.room, own.heads, spans.SLOTS.value)
    maxima = torch.empty(slots, dtype=torch.float32, device=device)
    plan[(1,)](
        items,
        integers(limits.tiles),
        arrived,
        view.cu_seqlens_q,
        view.seq_lens,
        view.num_seqs,
        limits.tiles,
        len(arrived),
        limits.wanted,
        limits.room,
        CUT=own.cut,
        num_warps=PLAN_WARPS,
    )
    sums = torch.empty(*slots, own.value_size, dtype=torch.float32, device=device)
    return Plan(items, arrived, sums, maxima, torch.empty_like(maxima), limits.items * own.lanes)
