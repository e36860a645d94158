"""Prepared matrices: the product, and what a provider may do with one besides.

Owns: `LinearKernel`, the optional parts of one, and those of the providers that prepare, cut or save it. Never does: import
torch at run time. Called by: plugins (they implement these), executor and models (they call these).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from core.api.specs import Activation

if TYPE_CHECKING:
    from torch import Tensor

    from core_runtime.weights.formats import CanonicalWeight


class LinearKernel(Protocol):
    """A prepared weight of shape (N, K). Optional parts: `HasGated`, `HasActivated`, `Recordable`."""

    shape: tuple[int, int]
    nbytes: int

    def __call__(self, x: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """out[T, N] = x[T, K] @ W.T (+ bias), or += with `accumulate`."""
        ...

    def rows(self, ids: Tensor, out: Tensor) -> None:
        """out[T, K] = W[ids], ids int64 [T]: the embedding."""
        ...


class ActivatedLinear(Protocol):
    """A linear kernel's product and the activation behind it, in one call: the bits of both one after the other."""

    def __call__(self, x: Tensor, activation: str, out: Tensor) -> None:
        """With y = x @ W.T (+ bias): out[T, N] = act(y), or gated out[T, N/2] = act(y[:, :N/2]) * y[:, N/2:]."""
        ...


@runtime_checkable
class HasGated(Protocol):
    """A linear kernel that can run the gated activation behind it in the same call.

    It is used unless `Kernels.gated` is served by a provider that comes before the kernel's own.
    """

    @property
    def gated(self) -> ActivatedLinear | None:
        """Both in one call; None where the kernel's shape does not allow it."""
        ...


@runtime_checkable
class HasActivated(Protocol):
    """A linear kernel that can run an activation without a gate behind it in the same call.

    It is used unless `Kernels.activate` is served by a provider that comes before the kernel's own.
    """

    @property
    def activated(self) -> ActivatedLinear | None:
        """Both in one call; None where the kernel's shape does not allow it."""
        ...


@runtime_checkable
class PreparesInto(Protocol):
    """A provider whose linear kernels can be prepared in memory that the caller owns."""

    def prepared_nbytes(self, weight: CanonicalWeight, *, activation: Activation) -> int:
        """Bytes of `into` that `linear` needs for this weight."""
        ...

    def linear(
        self, weight: CanonicalWeight, *, activation: Activation, bias: Tensor | None = None, into: Tensor | None = None
    ) -> LinearKernel:
        """As `Kernels.linear`. into: uint8 [prepared_nbytes], page-aligned, where the prepared weight then lies; or None."""
        ...


@runtime_checkable
class SumsInSegments(Protocol):
    """A provider whose products can be cut along K without a change of bits.

    Each of several equal segments of K then has a sum of its own, and these are added as a binary tree, so whoever has
    half of the segments has a whole subtree. A weight that does not divide so has fewer segments.
    """

    @property
    def max_segments(self) -> int:
        """Most segments of a product, a power of two."""
        ...

    def linear(
        self, weight: CanonicalWeight, *, activation: Activation, bias: Tensor | None = None, segments: int = 1
    ) -> LinearKernel:
        """As `Kernels.linear`. segments: a power of two, at most `max_segments`; 1: one sum for all of K."""
        ...


@dataclass(frozen=True, slots=True)
class SavedKernel:
    """A prepared linear kernel, as it is saved.

    facts: plain values for JSON, which only its provider understands.
    tables: small tensors beside the weight, by name.
    memory: uint8 [nbytes], page-aligned: the prepared weight.
    """

    facts: dict[str, Any]
    tables: dict[str, Tensor]
    memory: Tensor


@runtime_checkable
class SavesKernels(Protocol):
    """A provider whose prepared kernels can be saved, and taken into use again without preparing.

    layout: names the provider and the version of its layout; other bytes have another name.
    """

    layout: str

    def save(
        self,
        kernel: LinearKernel,
        weight: CanonicalWeight,
        *,
        activation: Activation,
        bias: Tensor | None,
        segments: int,
    ) -> SavedKernel | None:
        """The kernel, which `linear` has just made of these; None for one that cannot be saved."""
        ...

    def restore(self, saved: SavedKernel) -> LinearKernel:
        """The same kernel in `saved.memory`, whose bytes may still be on their way. Raises ValueError for wrong facts."""
        ...
