"""Row-wise symmetric int8 of plain checkpoints."""

import torch

from core.api.specs import DensePlan, PartPlan
from core.weights.formats import IntGroups

ZERO = 128


class RowwiseInt8:
    """The method's contract: linear layers become `int8_groups` with one group a row, the rest stays plain."""

    def __init__(self, scale_dtype):
        self.scale_dtype = getattr(torch, scale_dtype)

    def plan(self, spec):
        """Quantize linear layers whose width suits the format."""
        reads = (f"{spec.name}.weight",)
        n, k = spec.shape[-2:]
        if spec.role != "linear" or k % 16:
            return DensePlan(reads)
        nbytes = n * k + n * self.scale_dtype.itemsize
        return PartPlan(reads, "int8_groups", "none", f"frozen_int8:{k}:{self.scale_dtype}", nbytes)

    def pack(self, spec, tensors):
        """Round to the nearest of 255 steps."""
        (weight,) = tensors.values()
        weight = weight.float()
        scale = (weight.abs().amax(1, keepdim=True) / 127).clamp_min(1e-12).to(self.scale_dtype)
        values = (torch.round(weight / scale.float()).clamp(-127, 127) + ZERO).to(torch.uint8)
        return IntGroups(8, weight.shape[1], values, scale, None, ZERO)
