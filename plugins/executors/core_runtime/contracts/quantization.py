"""The contract of quantization methods, which turn a checkpoint's parts into canonical weights.

Owns: the Protocols and the small types that they exchange. Never does: import torch at run time.
Called by: plugins (they implement these), executor, models and config (they call these).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from core.api.specs import DensePlan, LayerSpec, PartPlan, Unsupported

if TYPE_CHECKING:
    from torch import Tensor

    from core_runtime.weights.formats import CanonicalWeight, StoredRows


@runtime_checkable
class QuantizationMethod(Protocol):
    """Kind `quantization`: translates a checkpoint's parts into canonical formats."""

    def plan(self, spec: LayerSpec) -> DensePlan | PartPlan | Unsupported:
        """Return how the part would be stored; torch-free and cheap (the memory plan calls it for every layer)."""
        ...

    def pack(self, spec: LayerSpec, tensors: dict[str, Tensor]) -> CanonicalWeight:
        """Translate the tensors that the plan reads. They may be views of a file: copy what must be kept."""
        ...


@runtime_checkable
class StoresRows(Protocol):
    """A method for checkpoints whose rows some kernels read as they lie in the file."""

    def stored(self, spec: LayerSpec, tensors: dict[str, Tensor]) -> StoredRows | None:
        """Return the rows of the tensors that the plan reads, without a copy; None where they need `pack`."""
        ...


@runtime_checkable
class PacksParts(Protocol):
    """A method that packs a part of a matrix without reading the rest of its tensors.

    Without it a rank reads a matrix as a whole, packs it and cuts the packed weight.
    """

    def pack_part(
        self, spec: LayerSpec, tensors: dict[str, Tensor], rows: Tensor | None, columns: slice | None
    ) -> CanonicalWeight:
        """Translate some rows, int64 in the order of the result, and some inputs; None: all.

        The numbers are those that `pack` gives for the same places. Raises ValueError for inputs that cannot be cut so.
        """
        ...
