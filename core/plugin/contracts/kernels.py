"""The contracts of kernels: the operations of a forward pass.

Owns: the Protocols and the small types that they exchange. Never does: import torch at run time.
Called by: plugins (they implement these), executor, models and config (they call these).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from core.api.reason import Reason
from core.api.specs import Activation, KernelQuery, RoutingSpec

if TYPE_CHECKING:
    from torch import Tensor

    from core.weights.formats import CanonicalWeight


class LinearKernel(Protocol):
    """A prepared weight of shape (N, K). One that the runtime's `capture` can record has `capturable = True`.

    One may also have `gated`: a `GatedLinear`, or None where its shape does not allow it.
    """

    shape: tuple[int, int]
    nbytes: int

    def __call__(self, x: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """out[T, N] = x[T, K] @ W.T (+ bias), or += with `accumulate`."""
        ...

    def rows(self, ids: Tensor, out: Tensor) -> None:
        """out[T, K] = W[ids], ids int64 [T]: the embedding."""
        ...


class GatedLinear(Protocol):
    """A linear kernel's product and the gated activation behind it, in one call."""

    def __call__(self, x: Tensor, activation: str, out: Tensor) -> None:
        """out[T, N/2] = act(y[:, :N/2]) * y[:, N/2:], y = x @ W.T (+ bias): the bits of the product, then `Kernels.gated`."""
        ...


class RouteKernel(Protocol):
    """The choice of experts for each token."""

    def __call__(self, logits: Tensor, routing: RoutingSpec, bias: Tensor | None, ids: Tensor, weights: Tensor) -> None:
        """ids int64 [T, k] and weights float32 [T, k] from logits [T, E]; bias float32 [E] counts in the choice alone.

        The lowest id wins a tie; ids are valid and different whatever the logits are.
        """
        ...


class ExpertsKernel(Protocol):
    """The prepared experts of one layer, each H → 2 · I → H with a gated activation."""

    nbytes: int

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """out[T, H] = Σ_j weights[t, j] · expert ids[t, j] of x [T, H], or += with `accumulate`.

        The sum goes by the experts' ids, not by j: see `core.layers.experts.combine`. ids int64 [T, k], weights float32 [T, k]. No token is dropped for capacity.
        """
        ...


class HeadsKernel(Protocol):
    """One prepared matrix for each head. One that the runtime's `capture` can record has `capturable = True`."""

    nbytes: int

    def __call__(self, x: Tensor, out: Tensor) -> None:
        """out[T, H, N] = x[T, H, K] @ W[H, N, K].T, each head with its own; rows and heads may be strided."""
        ...


@runtime_checkable
class Kernels(Protocol):
    """Kind `kernels`: the operations of a forward pass on one device.

    A provider may also have `soft_cap(x, cap)` (x = cap * tanh(x / cap)), `take_rows(x, rows, out)` (out[R, H] = x[rows],
    rows int64 [R]), `race` (a `RaceKernel`), `logprobs` (a `LogprobsKernel`), `route` (a `RouteKernel`),
    `experts(gate_up, down, activation) -> ExpertsKernel | None` with one of the provider's own linear kernels an expert in
    each list (None: it cannot run these together), and `heads(weight, activation) -> HeadsKernel` with a dense weight
    [H, N, K] of a type whose linear kernels it prepares; each is used when `supports` has no reason against the operation
    of that name, and the reference operations serve where no provider does (the sampler does without `race` and
    `logprobs`; without `heads` there is a linear kernel for each head).
    A provider whose calls the runtime's `capture` can record has `capturable = True`.
    """

    name: str
    numerics: str

    def supports(self, query: KernelQuery) -> list[Reason]:
        """What is missing for the operation; empty means supported."""
        ...

    def linear(self, weight: CanonicalWeight, *, activation: Activation, bias: Tensor | None = None) -> LinearKernel:
        """Repack once; the caller then drops `weight`. activation: precision to which x is rounded before the product."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """out[T, H] = x / sqrt(mean(x²) + eps) * weight."""
        ...

    def rms_norm_heads(self, x: Tensor, weight: Tensor, eps: float) -> None:
        """In place over the last axis of x [T, H, D] (rows may be strided)."""
        ...

    def rotary(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> None:
        """In place on q [T, Hq, D] and k [T, Hkv, D], half-split pairs (i, i + D/2); cos, sin [max_len, D/2] float32."""
        ...

    def gated(self, x: Tensor, activation: str, out: Tensor) -> None:
        """out[T, I] = act(x[:, :I]) * x[:, I:], activation `silu` or `gelu_tanh`."""
        ...

    def add(self, x: Tensor, residual: Tensor) -> None:
        """residual += x."""
        ...

    def scale(self, x: Tensor, factor: float) -> None:
        """x *= factor."""
        ...
