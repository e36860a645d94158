"""Reordering of the rows of a checkpoint's matrices into the order of the engine.

Owns: `row_order`. Never does: read or move a weight. Called by: the packing, the loading of norms.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from core.api.specs import Groups, RotaryPairs, RowOrder


def row_order(orders: Sequence[RowOrder], rows: int) -> Tensor:
    """Return the source of each row, int64 [rows], when `orders` are applied one after another."""
    found = torch.arange(rows)
    for order in orders:
        found = found[_groups(order) if isinstance(order, Groups) else _pairs(order, rows)]
    return found


def _pairs(order: RotaryPairs, rows: int) -> Tensor:
    """Return the order in which the pairs (2i, 2i + 1) of the rotating rows of each head become (i, i + count / 2)."""
    stop = rows if order.stop is None else order.stop
    result = torch.arange(rows)
    heads = torch.arange(order.start, stop).view(-1, order.head)
    end = order.first + order.count
    even = heads[:, order.first : end : 2]
    odd = heads[:, order.first + 1 : end : 2]
    turned = heads.clone()
    turned[:, order.first : end] = torch.cat([even, odd], dim=1)
    result[order.start : stop] = turned.flatten()
    return result


def _groups(order: Groups) -> Tensor:
    """Return the order with all rows of one part of each group first, then all of the next part, and so on."""
    size = sum(order.sizes)
    by_group = torch.arange(order.groups * size).view(order.groups, size)
    parts = by_group.split(list(order.sizes), dim=1)
    places = order.order or range(len(parts))
    return torch.cat([parts[place].flatten() for place in places])
