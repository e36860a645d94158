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
from core_kernels.triton.products.tiles import Tiles, tiles_with
from core_runtime.contracts import GatedOperation
from core_runtime.layers.reference import ReferenceKernels
from core_runtime.weights.experts import Experts
from core_runtime.weights.formats import CanonicalWeight


class CublasKernels(ReferenceKernels):
    """Products with dense weights. A provider of nothing else: other operations are refused.

    name: of the plugin.
    tiles: tile tables of Triton's products; None: the built-in ones.
    few: most rows whose products are Triton's.
    early: see `TritonKernels`.
    """

    capturable = True

    def __init__(
        self, name: str = "cublas", tiles: Tiles | None = None, few: int = FEW_ROWS, *, early: bool = True
    ) -> None:
        self.name = name
        self.numerics = numerics(name)
        self.tiles = tiles or tiles_with(None)
        self.few = few
        self.early = early

    def supports(self, query: KernelQuery) -> list[Reason]:
        """Return the reasons why an operation is not supported; empty means supported."""
        return lacking(query, (*DEVICES, "cpu") if INTERPRETED.value else DEVICES)

    def linear(  # type: ignore[override]
        self, weight: CanonicalWeight, *, activation: Activation, bias: Tensor | None = None
    ) -> CublasLinear:
        """Prepare a weight: it is kept as it is."""
        return CublasLinear(weight, activation, bias, self.tiles, self.early, self.few)

    def grouped_experts(  # type: ignore[override]
        self, gate_up: Experts, down: Experts, activation: str, *, precision: Activation, gated: GatedOperation
    ) -> CublasExperts:
        """Build the experts of a layer, with one weight per side."""
        within = getattr(gated, "__func__", None) is TritonKernels.gated
        return CublasExperts(gate_up, down, activation, precision, gated, within, self.tiles, self.early, self.few)

    def heads(self, weight: Tensor, activation: Activation) -> CublasHeads:
        """Prepare a dense weight [H, N, K], one matrix per head."""
        return CublasHeads(weight, activation, self.tiles, self.early, self.few)
