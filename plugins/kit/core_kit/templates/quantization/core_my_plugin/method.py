"""The method: which parts are quantized, and how."""

from __future__ import annotations

import torch
from torch import Tensor

from core.api.specs import DensePlan, LayerSpec, PartPlan
from core_runtime.weights.formats import IntGroups

ZERO = 128


class Method:
    """Implements `core_runtime.contracts.QuantizationMethod`."""

    def __init__(self, group_size: int) -> None:
        self.group_size = group_size

    def plan(self, spec: LayerSpec) -> DensePlan | PartPlan:
        """Linear layers whose width the groups divide are packed; everything else stays as it is."""
        reads = (f"{spec.name}.weight",)
        n, k = spec.shape[-2:]
        if spec.role != "linear" or k % self.group_size:
            return DensePlan(reads)
        nbytes = n * k + n * k // self.group_size * 2  # a byte a weight, two for each float16 scale
        return PartPlan(reads, "int8_groups", "none", f"my_plugin/{self.group_size}", nbytes)

    def pack(self, spec: LayerSpec, tensors: dict[str, Tensor]) -> IntGroups:
        """Round to the nearest of 255 steps in each group."""
        (weight,) = tensors.values()
        n, k = weight.shape
        groups = weight.float().view(n, k // self.group_size, self.group_size)
        scale = (groups.abs().amax(-1, keepdim=True) / 127).clamp_min(6e-8).half()  # the least positive float16
        values = (torch.round(groups / scale.float()).clamp(-127, 127) + ZERO).to(torch.uint8)
        return IntGroups(8, self.group_size, values.view(n, k), scale.squeeze(-1), None, ZERO)
