"""The providers `scaled_mm` and `deep_gemm`, implementing the `kernels` contract.

Owns: which weights each prepares. Never does: arithmetic. Called by: the kernel set of the platform's runtime.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from core.api.reason import Reason
from core.api.specs import Activation, KernelQuery
from core_kernels.cublas.few import with_facts
from core_kernels.cublas.limits import FEW_ROWS
from core_kernels.scaled.linear import BlockScaled, ScaledLinear, has_whole_blocks
from core_kernels.triton.kernels import TritonKernels
from core_runtime.contracts import LinearKernel
from core_runtime.layers.reference import ReferenceKernels
from core_runtime.weights.formats import FP8, CanonicalWeight


class ScaledKernels(ReferenceKernels):
    """Products of 8-bit floats. A provider of nothing else: other operations are refused.

    name, numerics: of the plugin.
    few: the kernels that multiply few rows. kind: the linear layer of the library. lacking: reasons against a product.
    facts: attributes of every query, see `facts_of`.
    """

    def __init__(
        self,
        name: str,
        numerics: str,
        few: TritonKernels,
        kind: type[ScaledLinear],
        lacking: Callable[[KernelQuery], list[Reason]],
        facts: dict[str, str],
    ) -> None:
        self.name = name
        self.numerics = numerics
        self.few = few
        self.kind = kind
        self.lacking = lacking
        self.facts = facts

    def supports(self, query: KernelQuery) -> list[Reason]:
        """Return the reasons why an operation is not supported; empty means supported."""
        return self.lacking(with_facts(query, self.facts))

    def linear(  # type: ignore[override]
        self, weight: CanonicalWeight, *, activation: Activation, bias: Tensor | None = None
    ) -> LinearKernel:
        """Prepare a weight. One whose blocks are cut by its rows, as where several were joined, stays Triton's."""
        few = self.few.linear(weight, activation=activation, bias=bias)
        if not isinstance(weight, FP8) or (self.kind is BlockScaled and not has_whole_blocks(weight)):
            return few
        return self.kind(weight, bias, few, FEW_ROWS)
