"""The products of the `cublas` kernels, implementing the `kernels` contract.

Owns: the provider. Never does: arithmetic (torch's cuBLAS and the Triton kernels do). Called by: the kernel set of the
platform's runtime.
"""

from __future__ import annotations

from torch import Tensor

from core.api.reason import Reason
from core.api.specs import Activation, KernelQuery
from core_kernels.cublas.experts import CublasExperts
from core_kernels.cublas.limits import DEVICES, FEW_ROWS, lacking, numerics
from core_kernels.cublas.products import CublasHeads, CublasLinear
from core_kernels.triton.kernels import TritonKernels
from core_kernels.triton.portable import INTERPRETED
from core_runtime.contracts import ExpertsKernel, GatedOperation, HeadsKernel
from core_runtime.layers.reference import ReferenceKernels
from core_runtime.weights.experts import Experts
from core_runtime.weights.formats import CanonicalWeight


class CublasKernels(ReferenceKernels):
    """Products with dense weights. A provider of nothing else: other operations are refused.

    name: of the plugin.
    few: the kernels that multiply few rows. most: rows that they multiply.
    """

    capturable = True

    def __init__(self, few: TritonKernels, name: str = "cublas", most: int = FEW_ROWS) -> None:
        self.name = name
        self.numerics = numerics(name)
        self.few = few
        self.most = most

    def supports(self, query: KernelQuery) -> list[Reason]:
        """Return the reasons why an operation is not supported; empty means supported."""
        return lacking(query, (*DEVICES, "cpu") if INTERPRETED.value else DEVICES)

    def linear(  # type: ignore[override]
        self, weight: CanonicalWeight, *, activation: Activation, bias: Tensor | None = None
    ) -> CublasLinear:
        """Prepare a weight: it is kept as it is."""
        few = self.few.linear(weight, activation=activation, bias=bias)
        return CublasLinear(few, self.most, self.few.gated)

    def grouped_experts(  # type: ignore[override]
        self, gate_up: Experts, down: Experts, activation: str, *, precision: Activation, gated: GatedOperation
    ) -> ExpertsKernel:
        """Build the experts of a layer, with one weight per side."""
        # Triton's kernels recognize their own gate, which they may fuse; another object of theirs has the same.
        if isinstance(getattr(gated, "__self__", None), TritonKernels):
            gated = self.few.gated
        few = self.few.grouped_experts(gate_up, down, activation, precision=precision, gated=gated)
        return CublasExperts(few, self.most, gated)

    def heads(self, weight: Tensor, activation: Activation) -> HeadsKernel:
        """Prepare a dense weight [H, N, K], one matrix per head."""
        return CublasHeads(self.few.heads(weight, activation), self.most)
