"""Experts: their choice for each token, and the sum of what the chosen ones give.

Owns: the kernels of both, and the optional parts of providers that have them. Never does: import torch at run time.
Called by: plugins (they implement these), models (they call these).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from core.api.reason import Reason
from core.api.specs import Activation, KernelQuery, RoutingSpec
from core_runtime.contracts.linear_kernels import LinearKernel

if TYPE_CHECKING:
    from torch import Tensor

    from core_runtime.weights.experts import Experts


class RouteKernel(Protocol):
    """The choice of experts for each token."""

    def __call__(self, logits: Tensor, routing: RoutingSpec, bias: Tensor | None, ids: Tensor, weights: Tensor) -> None:
        """ids int64 [T, k] and weights float32 [T, k] from logits [T, E]; bias float32 [E] counts in the choice alone.

        The lowest id wins a tie; ids are valid and different whatever the logits are.
        """
        ...


@runtime_checkable
class HasRoute(Protocol):
    """A provider with the operation `route`."""

    @property
    def route(self) -> RouteKernel:
        """The choice of experts."""
        ...


class ExpertsKernel(Protocol):
    """The prepared experts of one layer, each H → 2 · I → H with a gated activation, or H → I → H with a plain one.

    Optional part: `Recordable`.
    """

    nbytes: int

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """out[T, H] = Σ_j weights[t, j] · expert ids[t, j] of x [T, H], or += with `accumulate`.

        The sum goes by the experts' ids, not by j: see `core_runtime.layers.experts.combine`. ids int64 [T, k], weights float32
        [T, k]. No token is dropped for capacity.
        """
        ...


@runtime_checkable
class HasExperts(Protocol):
    """A provider with the operation `experts`."""

    def experts(
        self, gate_up: Sequence[LinearKernel], down: Sequence[LinearKernel], activation: str
    ) -> ExpertsKernel | None:
        """The experts of one layer together, or None when it cannot run these.

        gate_up, down: one of the provider's own linear kernels an expert.

        A provider may have one more option, `weight_inputs: bool = False`: a choice's weight then multiplies what its
        expert takes, not what it gives. It is also given experts without a gate: a kernel of `gate_up` has as many outputs
        as one of `down` has inputs, with `activate` between.
        """
        ...


class GatedOperation(Protocol):
    """`Kernels.gated`, alone."""

    def __call__(self, x: Tensor, activation: str, out: Tensor, /) -> None:
        """out[T, I] = act(x[:, :I]) * x[:, I:]."""
        ...


@runtime_checkable
class HasGroupedExperts(Protocol):
    """A provider that takes all experts of a layer as one weight; used where it `supports` the op `grouped_experts`.

    The query's shape is (E, N, K); it is asked for either side.
    """

    def supports(self, query: KernelQuery) -> list[Reason]:
        """What is missing for the operation; empty means supported."""
        ...

    def grouped_experts(
        self, gate_up: Experts, down: Experts, activation: str, *, precision: Activation, gated: GatedOperation
    ) -> ExpertsKernel:
        """Repack once; the caller then drops both weights.

        gate_up: [E, 2 * I, H]. down: [E, H, I].
        activation: between the two, `silu` or `gelu_tanh`.
        precision: to which inputs are rounded before each product.
        gated: the device's own operation between the two, for a kernel without one.
        """
        ...
