"""The preparation of a weight by one provider of kernels.

Owns: which of the wishes of a caller a provider can fulfil. Never does: choose the provider. Called by: `KernelSet`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeGuard

from torch import Tensor

from core.api.specs import Activation
from core_runtime.contracts import Kernels, LinearKernel, PreparesInto, RowLayouts, SumsInSegments
from core_runtime.weights.formats import CanonicalWeight

Room = Callable[[int], Tensor]
"""Function from a number of bytes to uint8 memory of that size."""


def prepared(
    provider: Kernels,
    weight: CanonicalWeight,
    activation: Activation,
    bias: Tensor | None,
    room: Room | None,
    segments: int = 1,
) -> LinearKernel:
    """Return a weight's kernel. room, segments: see `KernelSet.linear`; ignored by providers that have no use for them."""
    options: dict[str, Any] = {}
    if segments > 1 and isinstance(provider, SumsInSegments):
        options["segments"] = min(segments, provider.max_segments)
    if room is not None and isinstance(weight, CanonicalWeight) and _prepares_into(provider):
        options["into"] = room(provider.prepared_nbytes(weight, activation=activation))
    return provider.linear(weight, activation=activation, bias=bias, **options)


def reads_rows(provider: Kernels, layout: str) -> bool:
    """Whether a provider prepares rows of this layout as they lie in a file."""
    return isinstance(provider, RowLayouts) and layout in provider.row_layouts


def _prepares_into(provider: Kernels) -> TypeGuard[PreparesInto]:
    """Whether a provider has `prepared_nbytes` and a `linear` with `into`: a subclass may have replaced the latter."""
    return isinstance(provider, PreparesInto) and "into" in inspect.signature(provider.linear).parameters
