"""The provider `triton_kernels`, implementing the `kernels` contract.

Owns: which experts the library gets. Never does: arithmetic. Called by: the kernel set of the platform's runtime.
"""

from __future__ import annotations

import torch
from torch import Tensor

from core.api.reason import Reason
from core.api.specs import Activation, KernelQuery
from core_kernels.mxfp4.experts import LibraryExperts
from core_kernels.mxfp4.limits import LIBRARY, lacking, numerics
from core_kernels.triton.kernels import TritonKernels
from core_kernels.triton.products.linear import TritonLinear
from core_runtime.contracts import GatedOperation
from core_runtime.layers.reference import ReferenceKernels
from core_runtime.weights.experts import Experts
from core_runtime.weights.formats import CanonicalWeight

SERVED = (9, 10)
"""Major numbers of the architectures: sm_90, sm_100 and sm_103."""


class LibraryKernels(ReferenceKernels):
    """Experts in MXFP4. Other matrices in MXFP4 are Triton's; other operations are refused.

    few: Triton's kernels. capability: of the device, as torch tells it.
    """

    name = LIBRARY
    capturable = True
    features = TritonKernels.features

    def __init__(self, few: TritonKernels, capability: tuple[int, int]) -> None:
        self.numerics = numerics()
        self.few = few
        self.capability = capability

    def supports(self, query: KernelQuery) -> list[Reason]:
        """Return the reasons why an operation is not supported; empty means supported."""
        reasons = lacking(query)
        major, minor = self.capability
        if major not in SERVED:
            reasons.append(Reason("device", "sm_90 or sm_100", f"sm_{major}{minor}"))
        return reasons

    def linear(  # type: ignore[override]
        self, weight: CanonicalWeight, *, activation: Activation, bias: Tensor | None = None
    ) -> TritonLinear:
        """Prepare a matrix that is no expert."""
        return self.few.linear(weight, activation=activation, bias=bias)

    def grouped_experts(  # type: ignore[override]
        self,
        gate_up: Experts,
        down: Experts,
        activation: str,
        *,
        precision: Activation,
        gated: GatedOperation,
        biases: tuple[Tensor, Tensor] | None = None,
    ) -> LibraryExperts:
        """Build the experts of a layer, with one weight per side."""
        return LibraryExperts(gate_up, down, biases, activation, precision, gated, persistent=self.capability[0] == 10)


def capability_of(device: str) -> tuple[int, int]:
    """Return the compute capability of a device."""
    major, minor = torch.cuda.get_device_capability(torch.device(device))
    return major, minor
