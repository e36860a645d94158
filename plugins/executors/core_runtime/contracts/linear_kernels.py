"""The contracts of prepared matrices: their product, and what else providers can do with them.

Owns: `LinearKernel`, its optional parts, and those of providers that prepare, cut or save one. Never does: import
torch at run time. Called by: plugins (they implement these), executor and models (they call these).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from core.api.specs import Activation

if TYPE_CHECKING:
    from torch import Tensor

    from core_runtime.weights.formats import CanonicalWeight
    from core_runtime.weights.input_rounding import InputRounding


class LinearKernel(Protocol):
    """A prepared weight of shape (N, K). Optional parts: `HasGated`, `HasActivated`, `HasInputRounding`, `Recordable`."""

    shape: tuple[int, int]
    nbytes: int

    def __call__(self, x: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """Compute out[T, N] = x[T, K] @ W.T (+ bias), or += with `accumulate`."""
        ...

    def rows(self, ids: Tensor, out: Tensor) -> None:
        """Compute out[T, K] = W[ids], ids int64 [T]: the embedding."""
        ...


class ActivatedLinear(Protocol):
    """A linear kernel's product and the activation after it, in one call, with the same bits as both in sequence."""

    def __call__(self, x: Tensor, activation: str, out: Tensor) -> None:
        """With y = x @ W.T (+ bias), compute out[T, N] = act(y), or gated out[T, N/2] = act(y[:, :N/2]) * y[:, N/2:]."""
        ...


@runtime_checkable
class HasGated(Protocol):
    """A linear kernel that can run the gated activation after it in the same call.

    It is used unless a provider that precedes the kernel's own serves `Kernels.gated`.
    """

    @property
    def gated(self) -> ActivatedLinear | None:
        """Product and activation in one call; None if the kernel's shape does not allow it."""
        ...


@runtime_checkable
class HasActivated(Protocol):
    """A linear kernel that can run an activation without a gate after it in the same call.

    It is used unless a provider that precedes the kernel's own serves `Kernels.activate`.
    """

    @property
    def activated(self) -> ActivatedLinear | None:
        """Product and activation in one call; None if the kernel's shape does not allow it."""
        ...


@runtime_checkable
class HasInputRounding(Protocol):
    """A linear kernel that can round its inputs itself, with the bits of `InputRounding` followed by the product."""

    def round_inputs(self, step: InputRounding) -> bool:
        """Round inputs by `step` in every later call. False: it cannot, and nothing has changed."""
        ...


@runtime_checkable
class PreparesInto(Protocol):
    """A provider whose linear kernels can be prepared in memory that the caller owns."""

    def prepared_nbytes(self, weight: CanonicalWeight, *, activation: Activation) -> int:
        """Return the bytes of `into` that `linear` needs for this weight."""
        ...

    def linear(
        self, weight: CanonicalWeight, *, activation: Activation, bias: Tensor | None = None, into: Tensor | None = None
    ) -> LinearKernel:
        """Prepare as `Kernels.linear`. into: page-aligned uint8 [prepared_nbytes] for the prepared weight, or None."""
        ...


@runtime_checkable
class MovesWeights(Protocol):
    """A linear, heads or experts kernel whose weights may lie elsewhere: in host memory, or in a slot on the device."""

    def weights(self) -> list[Tensor]:
        """Return the contiguous tensors that hold the weight, in a fixed order. What a call writes to is not among them."""
        ...

    def use_weights(self, tensors: Sequence[Tensor]) -> None:
        """Read these tensors from now on, of the same shapes and dtypes. Their content may change between two calls."""
        ...


@runtime_checkable
class RowLayouts(Protocol):
    """A provider whose `linear` also prepares `StoredRows`: it reads rows as they lie in files.

    It raises CheckpointError, or lets `StoredRows.canonical` do so, for scales that are not finite.
    """

    @property
    def row_layouts(self) -> frozenset[str]:
        """Layouts of rows that it reads; see `StoredRows`."""
        ...


@runtime_checkable
class SumsInSegments(Protocol):
    """A provider whose products can be divided along K without a change of bits.

    Each of several equal segments of K then has a partial sum, and these are added as a binary tree, so a rank with
    half of the segments computes a whole subtree. A weight that does not divide evenly has fewer segments.
    """

    @property
    def max_segments(self) -> int:
        """Maximum segments of a product, a power of two."""
        ...

    def linear(
        self, weight: CanonicalWeight, *, activation: Activation, bias: Tensor | None = None, segments: int = 1
    ) -> LinearKernel:
        """Prepare as `Kernels.linear`. segments: a power of two, at most `max_segments`; 1: one sum for all of K."""
        ...


@dataclass(frozen=True, slots=True)
class SavedKernel:
    """The saved form of a prepared linear kernel.

    facts: JSON values that only its provider interprets.
    tables: small tensors in addition to the weight, by name.
    memory: uint8 [nbytes], page-aligned: the prepared weight.
    """

    facts: dict[str, Any]
    tables: dict[str, Tensor]
    memory: Tensor


@runtime_checkable
class SavesKernels(Protocol):
    """A provider whose prepared kernels can be saved, and restored without preparing them again.

    layout: name of the provider and the version of its layout; another layout needs another name.
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
        """Return the saved form of a kernel that `linear` has just made of these; None if it cannot be saved."""
        ...

    def restore(self, saved: SavedKernel) -> LinearKernel:
        """Return the kernel in `saved.memory`, whose bytes may still be loading. Raises ValueError for wrong facts."""
        ...
