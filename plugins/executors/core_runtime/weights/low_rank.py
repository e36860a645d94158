"""The update that an adapter makes to a layer. Never does: read an adapter. Called by: adapters, kernels, tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from core_runtime.contracts import LowRankForm

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class LowRank:
    """An update of neighbouring outputs of a layer with K inputs.

    For y, the layer's outputs [first, first + N), it computes y = gain * (y + scale * B (A x)) + shift.

    a: [r, K]; r may be 0, for an update without matrices. b: [N, r], in the order of the layer's outputs. Both have the
        same dtype, float32, float16 or bfloat16.
    scale: the adapter's factor, such as alpha / r.
    first: index of the first output.
    gain: float32 [N], DoRA's factor of each output; None: 1. It also multiplies what y holds before the update, so y must
        then be the layer's output alone, not a sum that the layer was added to.
    shift: float32 [N], added at the end: an adapter's own bias; None: 0.
    """

    a: Tensor
    b: Tensor
    scale: float
    first: int = 0
    gain: Tensor | None = None
    shift: Tensor | None = None

    @property
    def rank(self) -> int:
        """Return r."""
        return int(self.a.shape[0])

    @property
    def num_outputs(self) -> int:
        """Return N."""
        return int(self.b.shape[0])

    def to(self, device: torch.device) -> LowRank:
        """Return the update on a device."""
        gain = None if self.gain is None else self.gain.to(device)
        shift = None if self.shift is None else self.shift.to(device)
        return replace(self, a=self.a.to(device), b=self.b.to(device), gain=gain, shift=shift)

    def problem(self) -> str | None:
        """Return what is wrong with the tensors in themselves; None if nothing is."""
        if self.a.dtype not in DTYPES or self.a.dtype is not self.b.dtype:
            return (
                f"a and b are {self.a.dtype} and {self.b.dtype}, expected one of float32, float16 and bfloat16 for both"
            )
        if self.a.dim() != 2 or self.b.dim() != 2 or self.b.shape[1] != self.rank:
            return (
                f"a and b have the shapes {tuple(self.a.shape)} and {tuple(self.b.shape)}, expected [r, K] and [N, r]"
            )
        for name, vector in (("gain", self.gain), ("shift", self.shift)):
            fits = vector is None or (vector.dtype is torch.float32 and vector.shape == (self.num_outputs,))
            if vector is not None and not fits:
                return f"{name} is {vector.dtype} {tuple(vector.shape)}, expected float32 [{self.num_outputs}]"
        return None


def updates_problem(updates: Sequence[LowRank], form: LowRankForm) -> str | None:
    """Return what is wrong with the updates of one adapter for a layer; None if nothing is."""
    outputs, inputs = form.shape
    end = 0
    for update in sorted(updates, key=lambda one: one.first):
        problem = update.problem()
        if problem is not None:
            return problem
        if update.a.dtype is not form.dtype:
            return f"a and b are {update.a.dtype}, expected {form.dtype}"
        if update.a.shape[1] != inputs:
            return f"a has {update.a.shape[1]} columns, expected the layer's {inputs} inputs"
        if update.first < end:
            return f"two updates share output {update.first}; each output has at most one"
        end = update.first + update.num_outputs
    if end > outputs:
        return f"an update ends at output {end}, but the layer has {outputs}"
    ranks = sum(update.rank for update in updates)
    if ranks > form.max_rank:
        return f"the ranks add up to {ranks}, expected at most {form.max_rank}"
    return None
