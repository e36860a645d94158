"""Tokens of a step that the device takes from where it drew them for the step before.

Owns: how they get there. Never does: know which sequences go on (the steps ahead do), or read a token.
Called by: the forward pass, once the step's other inputs are on their way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core_runtime.executor.step_buffers import StepBuffers


@dataclass(frozen=True, slots=True)
class TakenTokens:
    """The first `count` drawn tokens are the step's own in order, or those that its buffers `taken` name.

    drawn: int64 [N] on the device; -1 where none could be drawn: that sequence goes on with any token.
    count: how many are taken.
    in_order: whether they are all tokens of the step, in the order in which they were drawn.
    """

    drawn: Tensor
    count: int
    in_order: bool = True

    @classmethod
    def chosen(
        cls, drawn: Tensor, buffers: StepBuffers, sources: NDArray[np.int64], targets: NDArray[np.int64]
    ) -> TakenTokens:
        """Take drawn tokens `sources` as tokens `targets` of the step, both int64 [count]; the host writes its others."""
        assert buffers.taken is not None, "the device draws no tokens"
        count = len(sources)
        for column, rows in zip(buffers.taken, (sources, targets), strict=True):
            column.array[:count] = rows
            column.changed(count)
        return cls(drawn, count, in_order=False)

    def put(self, buffers: StepBuffers) -> None:
        """Move the tokens on the device, behind the step's other inputs."""
        token_ids = buffers.token_ids.tensor
        if self.in_order:
            torch.clamp(self.drawn[: self.count], min=0, out=token_ids[: self.count])
            return
        assert buffers.taken is not None
        sources, targets = [column.tensor[: self.count] for column in buffers.taken]
        chosen = self.drawn.index_select(0, sources)
        token_ids.index_copy_(0, targets, chosen.clamp_(min=0))
