"""The provider `triton_kernels`, implementing the `kernels` contract.

Owns: which experts the library gets. Never does: arithmetic. Called by: the kernel set of the platform's runtime.
"""

from __future__ import annotations

from torch import Tensor

from core.api.reason import Reason
from core.api.specs import Activation, KernelQuery
from core_kernels.cublas.few import with_facts
from core_kernels.mxfp4.experts import LibraryExperts, UnreadExperts
from core_kernels.mxfp4.limits import LIBRARY, PERSISTENT, lacking, numerics
from core_runtime.contracts import GatedOperation
from core_runtime.layers.reference import ReferenceKernels
from core_runtime.weights.experts import Experts


class LibraryKernels(ReferenceKernels):
    """Experts in MXFP4; other operations are refused.

    facts: attributes of every query, see `facts_of`.
    """

    name = LIBRARY
    capturable = True

    def __init__(self, facts: dict[str, str]) -> None:
        self.numerics = numerics()
        self.facts = facts

    def supports(self, query: KernelQuery) -> list[Reason]:
        """Return the reasons why an operation is not supported; empty means supported."""
        return lacking(with_facts(query, self.facts))

    def grouped_experts(  # type: ignore[override]
        self,
        gate_up: Experts,
        down: Experts,
        activation: str,
        *,
        precision: Activation,
        gated: GatedOperation,
        biases: tuple[Tensor, Tensor] | None = None,
    ) -> LibraryExperts | UnreadExperts:
        """Build the experts of a layer, with one weight per side."""
        if gate_up.tensors()["values"].is_meta:
            return UnreadExperts(gate_up, down, activation, gated)
        persistent = self.facts["profile"] in PERSISTENT
        return LibraryExperts(gate_up, down, biases, activation, precision, gated, persistent=persistent)
