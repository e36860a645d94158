"""The adapters of a layer whose inputs are divided among ranks.

Owns: the two products of such a layer's updates, and the sum over ranks between them. Never does: read an adapter, or
communicate by itself (the model's `reduce` does). Called by: linear layers of a rank, in a model with adapters.

A rank has the columns of A for its own inputs, and all of B. The ranks add their partial sums of A x, each of which is a
subtree of the sum of a rank that has all inputs, and each rank multiplies the result by B. So outputs have the bits of one
rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from core_runtime.contracts import LowRankForm, LowRankTable, PackedLowRank, is_recordable
from core_runtime.layers.partial_sums import PartialSums
from core_runtime.weights.low_rank import LowRank


class PackedDivided:
    """The updates of one adapter. inner: gives A x of this rank's inputs. outer: applies B to the sum over ranks."""

    __slots__ = ("inner", "nbytes", "outer")

    def __init__(self, inner: PackedLowRank, outer: PackedLowRank) -> None:
        self.inner = inner
        self.outer = outer
        self.nbytes = inner.nbytes + outer.nbytes


class DividedTable:
    """The resident adapters of one layer; implements the `LowRankTable` contract. `attach` must be called before the first
    step.

    inner: table whose outputs are the numbers of A x, one for each rank of an adapter.
    outer: table of the layer's outputs, whose inputs are these numbers.

    Products with the rows of an identity copy numbers exactly, so that both tables are those of any provider.
    """

    def __init__(self, inner: LowRankTable, outer: LowRankTable) -> None:
        self._inner = inner
        self._outer = outer
        self._sums: PartialSums | None = None
        self.form: LowRankForm = replace(outer.form, shape=(outer.form.shape[0], inner.form.shape[1]))

    def attach(self, sums: PartialSums) -> None:
        """Bind the table to the sums of the model that its layer belongs to."""
        sums.reserve_inner(self._width)
        self._sums = sums

    @property
    def _width(self) -> int:
        return self._inner.form.shape[0]

    @property
    def capturable(self) -> bool:
        """Whether both products and the sum between them can be recorded."""
        return (
            self._sums is not None
            and is_recordable(self._sums.reduce)
            and is_recordable(self._inner)
            and is_recordable(self._outer)
        )

    def pack(self, updates: Sequence[LowRank]) -> PackedDivided:
        """Repack the updates of one adapter, whose A have the columns of this rank. Raises ValueError."""
        starts = accumulate((update.rank for update in updates), initial=0)
        places = list(zip(updates, starts, strict=False))
        first = [_inner_of(update, start) for update, start in places if update.rank]
        second = [_outer_of(update, start, self._width) for update, start in places]
        return PackedDivided(self._inner.pack(first), self._outer.pack(second))

    def set(self, row: int, packed: PackedLowRank) -> None:
        """Put an adapter into a row of both tables."""
        if not isinstance(packed, PackedDivided):
            raise TypeError(f"{type(packed).__name__} was packed by another table")
        self._inner.set(row, packed.inner)
        self._outer.set(row, packed.outer)

    def clear(self, row: int) -> None:
        """Empty a row of both tables."""
        self._inner.clear(row)
        self._outer.clear(row)

    def __call__(self, x: Tensor, rows: Tensor, out: Tensor) -> None:
        """Apply to each out[t] the updates in row rows[t] of the table for the inputs of all ranks; x[t] are this one's."""
        assert self._sums is not None, "a bound layer is attached to the sums of its model"
        numbers = self._sums.inner(x.shape[0], self._width)
        self._inner(x, rows, numbers)
        self._sums.reduce(numbers)
        self._outer(numbers, rows, out)


def _inner_of(update: LowRank, start: int) -> LowRank:
    """Return the update that writes A x to the numbers from `start` on."""
    return LowRank(update.a, torch.eye(update.rank, dtype=update.a.dtype), 1.0, start)


def _outer_of(update: LowRank, start: int, width: int) -> LowRank:
    """Return the update whose inputs are A x, `width` numbers of which those from `start` on are this update's."""
    chosen = torch.zeros(update.rank, width, dtype=update.a.dtype)
    chosen[:, start : start + update.rank].fill_diagonal_(1.0)
    return replace(update, a=chosen)
