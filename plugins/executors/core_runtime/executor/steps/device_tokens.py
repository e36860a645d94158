"""Input tokens that the device takes from where it drew them in the previous step.

Owns: the move on the device. Never does: know which sequences continue (the steps ahead do), or read a token.
Called by: the forward pass, after the step's other inputs were sent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core_runtime.executor.steps.buffers import StepBuffers


@dataclass(frozen=True, slots=True)
class DeviceTokens:
    """The drawn tokens that a step takes: the first `count` in order, or those named in the buffers `taken`.

    drawn: int64 [N] on the device; -1 for a failed row, whose sequence continues with any token.
    count: number of tokens that are taken.
    in_order: whether they are all tokens of the step, in the order in which they were drawn.
    """

    drawn: Tensor
    count: int
    in_order: bool = True

    @classmethod
    def chosen(
        cls, drawn: Tensor, buffers: StepBuffers, sources: NDArray[np.int64], targets: NDArray[np.int64]
    ) -> DeviceTokens:
        """Take drawn tokens `sources` as tokens `targets` of the step, both int64 [count]; the host writes the others."""
        assert buffers.taken is not None, "the device draws no tokens"
        count = len(sources)
        for column, rows in zip(buffers.taken, (sources, targets), strict=True):
            column.array[:count] = rows
            column.changed(count)
        return cls(drawn, count, in_order=False)

    def put(self, buffers: StepBuffers) -> None:
        """Move the tokens on the device, after the step's other inputs were sent."""
        token_ids = buffers.token_ids.tensor
        if self.in_order:
            # -1 has no embedding; the sequence's output is discarded anyway.
            torch.clamp(self.drawn[: self.count], min=0, out=token_ids[: self.count])
            return
        assert buffers.taken is not None
        sources, targets = [column.tensor[: self.count] for column in buffers.taken]
        chosen = self.drawn.index_select(0, sources)
        token_ids.index_copy_(0, targets, chosen.clamp_(min=0))
