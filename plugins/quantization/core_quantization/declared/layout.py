"""The contract of a layout: one way in which checkpoints store a packed matrix.

Never does: choose the modules that are stored this way (methods do). Called by: the method; implemented by one class a
layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from core.api.specs import PartPlan, Unsupported
from core_quantization.declared.part import StoredPart

if TYPE_CHECKING:
    from torch import Tensor

    from core_runtime.weights.formats import CanonicalWeight


class Layout(Protocol):
    """One way to store a matrix, with its numbers (bits, group size, ...)."""

    def plan(self, part: StoredPart) -> PartPlan | Unsupported:
        """Return how the part is stored. Torch-free, from names and shapes alone."""
        ...

    def pack(self, part: StoredPart, tensors: Mapping[str, Tensor]) -> CanonicalWeight:
        """Return the part as a canonical weight. tensors: by suffix, views of a file, so parts that are kept must be
        copied.

        Raises ValueError with the end of a sentence about the part when values or shapes are wrong.
        """
        ...
