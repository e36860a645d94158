"""The updates of adapters in plain torch.

Owns: the meaning of the operation `low_rank`; native kernels are tested against it. Never does: record.
Called by: `ReferenceKernels`, and so by layers where no provider's kernel supports the operation.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from core_runtime.contracts import LowRankForm, PackedLowRank
from core_runtime.weights.low_rank import LowRank, updates_problem


def num_segments(num_inputs: int, most: int) -> int:
    """Return the number of segments of K: the largest power of two up to `most` that leaves equal, even segments."""
    segments = 1
    while 2 * segments <= most and num_inputs % (4 * segments) == 0:
        segments *= 2
    return segments


class HeldLowRank:
    """The updates of one adapter, on the device of its tensors."""

    def __init__(self, updates: Sequence[LowRank]) -> None:
        self.updates = tuple(updates)
        tensors = [tensor for one in updates for tensor in (one.a, one.b, one.gain, one.shift) if tensor is not None]
        self.nbytes = sum(tensor.nbytes for tensor in tensors)


class ReferenceLowRank:
    """The resident adapters of one layer; see `core_runtime.contracts.LowRankTable`.

    It computes row by row: a library may choose another order of sums for another number of rows.
    """

    capturable = False

    def __init__(self, form: LowRankForm) -> None:
        self.form = form
        self.segments = num_segments(form.shape[1], form.segments)
        self._held: list[PackedLowRank | None] = [None] * form.num_rows

    def pack(self, updates: Sequence[LowRank]) -> HeldLowRank:
        """Move the updates to the table's device. Raises ValueError."""
        problem = updates_problem(updates, self.form)
        if problem is not None:
            raise ValueError(problem)
        return HeldLowRank([update.to(self.form.device) for update in updates])

    def set(self, row: int, packed: PackedLowRank) -> None:
        """Put an adapter into a row."""
        self._held[row] = packed

    def clear(self, row: int) -> None:
        """Empty a row."""
        self._held[row] = None

    def __call__(self, x: Tensor, rows: Tensor, out: Tensor) -> None:
        """Apply to each out[t] the updates in row rows[t] of the table for x[t]; see `LowRankTable`."""
        for index, row in enumerate(rows.tolist()):
            held = self._held[row] if row >= 0 else None
            if not isinstance(held, HeldLowRank):
                continue
            wide = x[index].float().clone()  # an address that the allocator aligns, whatever the row's is
            for update in held.updates:
                self._apply(update, wide, out[index])

    def _apply(self, update: LowRank, x: Tensor, out: Tensor) -> None:
        """Apply one update to a row: x float32 [K], out [N]."""
        place = out[update.first : update.first + update.num_outputs]
        value = place.float()
        if update.rank:
            inner = self._inner(update.a.float(), x)
            value = value + update.scale * (update.b.float() @ inner)
        if update.gain is not None:
            value = value * update.gain
        if update.shift is not None:
            value = value + update.shift
        place.copy_(value)

    def _inner(self, a: Tensor, x: Tensor) -> Tensor:
        """Return A x, float32 [r], summed in segments."""
        parts = a.unflatten(1, (self.segments, -1)).transpose(0, 1)
        inputs = x.unflatten(0, (self.segments, -1)).unsqueeze(2)
        sums = torch.bmm(parts.contiguous(), inputs).squeeze(2)
        while len(sums) > 1:
            sums = sums[::2] + sums[1::2]
        return sums[0]
