"""The contracts of experts: their choice for each token, and the sum of their outputs.

Owns: the kernels of both, and the optional parts of providers that have them. Never does: import torch at run time.
Called by: plugins (they implement these), models (they call these).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from core.api.reason import Reason
from core.api.specs import Activation, KernelQuery
from core_runtime.contracts.linear_kernels import LinearKernel
from core_runtime.specs.routing_spec import RoutingSpec

if TYPE_CHECKING:
    from torch import Tensor

    from core_runtime.weights.experts import Experts


class RouteKernel(Protocol):
    """Kernel that chooses the experts of each token."""

    def __call__(self, logits: Tensor, routing: RoutingSpec, bias: Tensor | None, ids: Tensor, weights: Tensor) -> None:
        """Write ids int64 [T, k] and weights float32 [T, k] for logits [T, E]; bias float32 [E] affects the choice only.

        The lowest id wins a tie; ids are valid and distinct for any logits, NaN included.
        """
        ...


@runtime_checkable
class HasRoute(Protocol):
    """A provider with the operation `route`."""

    @property
    def route(self) -> RouteKernel:
        """The kernel that chooses experts."""
        ...


class ExpertsKernel(Protocol):
    """The prepared experts of one layer, each H → 2 · I → H with a gated activation, or H → I → H with a plain one.

    Optional parts: `Recordable`, `HoldsSomeExperts`.
    """

    nbytes: int

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """Compute out[T, H] = Σ_j weights[t, j] · expert ids[t, j] of x [T, H], or += with `accumulate`.

        The sum is in the order of expert ids, not of j: see `core_runtime.layers.experts.combine`. ids int64 [T, k], weights
        float32 [T, k]. No token is dropped for capacity.
        """
        ...


@runtime_checkable
class HoldsSomeExperts(Protocol):
    """The optional part of an `ExpertsKernel` for a rank that holds some of a layer's experts, each in a slot.

    `ExpertsKernel.__call__` then takes slots instead of ids; -1: another rank computes the choice, and nothing is added.
    """

    def place(self, ids: Tensor, table: Tensor, per_rank: int, rank: int, loads: Tensor, slots: Tensor) -> None:
        """Write the rank's own slot of each choice, or -1, to slots int64 [T, k]; all ranks decide alike.

        ids: int64 [T, k], experts of the whole layer.
        table: int32 [E, 1 + copies]: the number of an expert's copies, then their slots of all ranks. Of several copies,
            the one on the rank with the fewest choices so far in this call is used, the first one on ties.
        loads: int64 [E], to which the choices of each expert are added.
        """
        ...

    def apart(self, x: Tensor, slots: Tensor, weights: Tensor, out: Tensor) -> None:
        """Write the unweighted output of each choice to out[T, k * H], and zeros for choices of other ranks."""
        ...

    def combine(
        self, outputs: Tensor, ids: Tensor, weights: Tensor, count: int, out: Tensor, *, accumulate: bool = False
    ) -> None:
        """Compute out[T, H] (+)= the weighted sum of outputs [T, k * H], with the bits of a kernel that holds all `count`
        experts.
        """
        ...

    def fits(self, gate_up: LinearKernel, down: LinearKernel) -> bool:
        """Whether an expert has the form of those in the slots."""
        ...

    def replace(self, slot: int, gate_up: LinearKernel, down: LinearKernel) -> list[Tensor]:
        """Put another expert that fits in a slot; between two steps.

        Returns the memory that callers gave for the former one, which is free now.
        """
        ...


@runtime_checkable
class HasExperts(Protocol):
    """A provider with the operation `experts`."""

    def experts(
        self, gate_up: Sequence[LinearKernel], down: Sequence[LinearKernel], activation: str
    ) -> ExpertsKernel | None:
        """Make the kernel for all experts of one layer; None if the provider cannot run them.

        gate_up, down: one of the provider's own linear kernels per expert.

        A provider may have one more option, `weight_inputs: bool = False`: a choice's weight then multiplies the
        expert's input instead of its output. It then also gets experts without a gate: a kernel of `gate_up` has as
        many outputs as one of `down` has inputs, with `activate` between.

        Another is `max_ranges: int = 8`, for a rank that holds some of a layer's experts: the maximum of ranges of ids
        with partial sums of their own. The kernel must then be `HoldsSomeExperts`.
        """
        ...


class GatedOperation(Protocol):
    """The operation `Kernels.gated` as a function."""

    def __call__(self, x: Tensor, activation: str, out: Tensor, /) -> None:
        """Compute out[T, I] = act(x[:, :I]) * x[:, I:]."""
        ...


@runtime_checkable
class HasGroupedExperts(Protocol):
    """A provider that takes all experts of a layer as one weight; used where it `supports` the op `grouped_experts`.

    The query has the shape (E, N, K), and is made once for each side.
    """

    def supports(self, query: KernelQuery) -> list[Reason]:
        """Return what is missing for the operation; empty means supported."""
        ...

    def grouped_experts(
        self, gate_up: Experts, down: Experts, activation: str, *, precision: Activation, gated: GatedOperation
    ) -> ExpertsKernel:
        """Repack the weights once; the caller then drops both.

        gate_up: [E, 2 * I, H]. down: [E, H, I].
        activation: activation between the two sides, `silu` or `gelu_tanh`.
        precision: precision to which inputs are rounded before each product.
        gated: the device's own operation between the two sides, for a kernel without one.

        A provider may have one more option, `biases: tuple[Tensor, Tensor] | None = None`: [E, 2 * I] and [E, H], added
        to the products of the experts. Without it, experts with biases are prepared one by one. Another is `max_ranges`,
        see `HasExperts`; without it, sums depend on the number of ranks, which the numerics of a divided model name.
        """
        ...
