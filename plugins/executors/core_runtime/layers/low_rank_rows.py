"""The rows of a table of adapters whose kernel reads addresses.

Owns: `AddressRows`: packing with its check, and setting and clearing rows. Never does: lay out an update, or compute.
Called by: the tables of providers with kernels of their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import torch

from core_runtime.contracts import LowRankForm, PackedLowRank
from core_runtime.layers.low_rank import num_segments
from core_runtime.weights.low_rank import LowRank, updates_problem


class AddressedUpdate(PackedLowRank, Protocol):
    """The updates of one adapter for one layer, at a place in memory that does not change."""

    address: int


U = TypeVar("U", bound=AddressedUpdate)


class AddressRows(ABC, Generic[U]):
    """The rows of one layer, all of `LowRankTable` but the call.

    kind:          the type of the provider's updates.
    most_segments: the largest number of segments of K that its kernel sums.
    table:         int64 [num_rows] on the device, the address of each row's update; 0: the row is empty.
    """

    __slots__ = ("_held", "_kind", "form", "segments", "table")

    def __init__(self, form: LowRankForm, kind: type[U], most_segments: int) -> None:
        self.form = form
        self.segments = num_segments(form.shape[1], min(form.segments, most_segments))
        self.table = torch.zeros(form.num_rows, dtype=torch.int64, device=form.device)
        self._kind = kind
        self._held: list[U | None] = [None] * form.num_rows

    def pack(self, updates: Sequence[LowRank]) -> U:
        """Lay out the updates of one adapter. Raises ValueError."""
        problem = updates_problem(updates, self.form)
        if problem is not None:
            raise ValueError(problem)
        return self.laid_out(updates)

    @abstractmethod
    def laid_out(self, updates: Sequence[LowRank]) -> U:
        """Return updates that fit the layer as the kernel reads them."""

    def set(self, row: int, packed: PackedLowRank) -> None:
        """Put an adapter into a row."""
        if not isinstance(packed, self._kind):
            raise TypeError(f"{type(packed).__name__} was packed by another provider")
        self.table[row] = packed.address
        self._held[row] = packed

    def clear(self, row: int) -> None:
        """Empty a row."""
        self.table[row] = 0
        self._held[row] = None
