"""The resident adapters of one layer, for the kernels of `low_rank`.

Owns: how an adapter's updates lie in the device's memory. Never does: launch with other tensors than it is given.
Called by: the provider.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from core_kernels.triton.low_rank import update_rows
from core_runtime.contracts import LowRankForm
from core_runtime.layers.low_rank_rows import AddressRows
from core_runtime.weights.low_rank import LowRank

SEGMENT_INPUTS: Final = 256
"""Inputs of a segment, at least: with fewer a program has too little to read."""


class TritonUpdate:
    """The updates of one adapter for one layer.

    address: of its words; see `low_rank.HEAD` and `low_rank.PART`.
    """

    def __init__(self, updates: Sequence[LowRank]) -> None:
        self._a = torch.cat([one.a for one in updates]) if updates else None
        self._kept: list[Tensor] = [] if self._a is None else [self._a]
        ranks = sum(one.rank for one in updates)
        words = [0 if self._a is None else self._a.data_ptr(), ranks, len(updates), 0]
        offset = 0
        for one in updates:
            addresses = [self._keep(one.b.T), self._keep(one.gain), self._keep(one.shift)]
            words += [one.first, one.num_outputs, offset, one.rank, *addresses, _bits(one.scale)]
            offset += one.rank
        device = updates[0].a.device if updates else torch.device("cpu")
        self._words = torch.tensor(words, dtype=torch.int64).to(device)
        self._kept.append(self._words)
        self.address = self._words.data_ptr()
        self.nbytes = sum(tensor.nbytes for tensor in self._kept)

    def _keep(self, tensor: Tensor | None) -> int:
        """Keep a contiguous copy of a tensor; return its address, 0 without one."""
        if tensor is None:
            return 0
        self._kept.append(tensor.contiguous())
        return int(self._kept[-1].data_ptr())


def _bits(number: float) -> int:
    """Return the bits of a number as float32."""
    return int(struct.unpack("<i", struct.pack("<f", number))[0])


class TritonLowRank(AddressRows[TritonUpdate]):
    """The resident adapters of one layer; implements the `LowRankTable` contract."""

    capturable = True

    def __init__(self, form: LowRankForm) -> None:
        super().__init__(form, TritonUpdate, max(form.shape[1] // SEGMENT_INPUTS, 1))

    def laid_out(self, updates: Sequence[LowRank]) -> TritonUpdate:
        """Copy updates to the device."""
        return TritonUpdate([update.to(self.form.device) for update in updates])

    def __call__(self, x: Tensor, rows: Tensor, out: Tensor) -> None:
        """Apply to each out[t] the updates in row rows[t] of the table for x[t]."""
        update_rows(
            x, rows, self.table, out, stored=self.form.dtype, width=max(self.form.max_rank, 1), segments=self.segments
        )
