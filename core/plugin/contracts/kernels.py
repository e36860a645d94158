"""The contracts of kernels: the operations of a forward pass.

Owns: the Protocols and the small types that they exchange. Never does: import torch at run time.
Called by: plugins (they implement these), executor, models and config (they call these).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from core.api.reason import Reason
from core.api.specs import Activation, KernelQuery, RoutingSpec
from core.plugin.contracts.sampling import LogprobsKernel, MaskedRaceKernel, RaceKernel

if TYPE_CHECKING:
    from torch import Tensor

    from core.weights.experts import Experts
    from core.weights.formats import CanonicalWeight


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


class RouteKernel(Protocol):
    """The choice of experts for each token."""

    def __call__(self, logits: Tensor, routing: RoutingSpec, bias: Tensor | None, ids: Tensor, weights: Tensor) -> None:
        """ids int64 [T, k] and weights float32 [T, k] from logits [T, E]; bias float32 [E] counts in the choice alone.

        The lowest id wins a tie; ids are valid and different whatever the logits are.
        """
        ...


class ExpertsKernel(Protocol):
    """The prepared experts of one layer, each H → 2 · I → H with a gated activation, or H → I → H with a plain one.

    Optional part: `Recordable`.
    """

    nbytes: int

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """out[T, H] = Σ_j weights[t, j] · expert ids[t, j] of x [T, H], or += with `accumulate`.

        The sum goes by the experts' ids, not by j: see `core.layers.experts.combine`. ids int64 [T, k], weights float32
        [T, k]. No token is dropped for capacity.
        """
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


class HeadsKernel(Protocol):
    """One prepared matrix for each head. Optional part: `Recordable`."""

    nbytes: int

    def __call__(self, x: Tensor, out: Tensor) -> None:
        """out[T, H, N] = x[T, H, K] @ W[H, N, K].T, each head with its own; rows and heads may be strided."""
        ...


@runtime_checkable
class Kernels(Protocol):
    """Kind `kernels`: the operations of a forward pass on one device.

    Optional parts, each a Protocol of its own: `HasLayerNorm`, `HasActivate`, `HasOpenGate`, `HasFeatures`, `HasSoftCap`,
    `HasAddNorm`, `HasTakeRows`, `HasRoute`, `HasExperts`, `HasHeads`, `HasRace`, `HasLogprobs`. Each is used when `supports`
    has no reason against the operation of that name. The reference operations serve where no provider does; the sampler does
    without `race` and `logprobs`, and without `heads` there is a linear kernel for each head. A provider whose calls can be
    recorded is `Recordable`.
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
        """In place over the last axis of x [T, H, D] (rows may be strided); weight [D].

        With the feature `norms_by_head` weight may be [H, D], a row for each head.
        """
        ...

    def rotary(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> None:
        """In place on q [T, Hq, D] and k [T, Hkv, D], half-split pairs (i, i + R/2) of the first R numbers of a head.

        cos, sin: [max_len, R/2] float32. R is D; with the feature `partial_rotary` it may be less.
        """
        ...

    def gated(self, x: Tensor, activation: str, out: Tensor) -> None:
        """out[T, I] = act(x[:, :I]) * x[:, I:], activation `silu` or `gelu_tanh`, or of a kind among the features."""
        ...

    def add(self, x: Tensor, residual: Tensor) -> None:
        """residual += x."""
        ...

    def scale(self, x: Tensor, factor: float) -> None:
        """x *= factor."""
        ...


@runtime_checkable
class HasFeatures(Protocol):
    """A provider whose operations can do more than every provider's; see `core.layers.activations` for their names."""

    @property
    def features(self) -> Collection[str]:
        """Of single operations:

        kinds of activations: `gated` serves them, and `activate` if there is one.
        partial_rotary: `rotary` turns the first numbers of each head alone.
        norms_by_head: `rms_norm_heads` takes a weight for each head.
        sparse_mixer, routing_epsilon: `route` knows these scores, and `RoutingSpec.epsilon`.
        zero_points, bfloat16_scales, input_order: `linear` takes integer groups with them; see `IntGroups`.
        """
        ...


@runtime_checkable
class HasLayerNorm(Protocol):
    """A provider with the operations `layer_norm` and `layer_norm_heads`."""

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor) -> None:
        """out[T, H] = (x - mean) / sqrt(variance + eps) * weight (+ bias), in float32 inside; out may be x."""
        ...

    def layer_norm_heads(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> None:
        """In place over the last axis of x [T, H, D] (rows may be strided), weight and bias [D] or [H, D]."""
        ...


@runtime_checkable
class HasActivate(Protocol):
    """A provider with the operation `activate`, of the kinds of activations among its features."""

    def activate(self, x: Tensor, activation: str, out: Tensor) -> None:
        """out[T, I] = act(x), for an MLP without a gate."""
        ...


@runtime_checkable
class HasOpenGate(Protocol):
    """A provider with the operation `open_gate`."""

    def open_gate(self, gate: Tensor, x: Tensor) -> None:
        """x[T, W] *= sigmoid(gate[T, G]), in place: each number of the gate opens W / G neighbours. Rows may be strided."""
        ...


@runtime_checkable
class HasSoftCap(Protocol):
    """A provider with the operation `soft_cap`."""

    def soft_cap(self, x: Tensor, cap: float) -> None:
        """x[T, V] = cap * tanh(x / cap), in place."""
        ...


class AddNorm(Protocol):
    """The end of a branch of the residual stream, and the beginning of the next one."""

    def __call__(
        self, x: Tensor, before: Tensor | None, residual: Tensor, behind: Tensor, eps: float, out: Tensor
    ) -> None:
        """residual[T, H] += x[T, H], behind `rms_norm` with the weight `before` unless that is None; then
        out[T, H] = `rms_norm` of residual with the weight `behind`. What x holds afterwards means nothing.

        The bits are those of `Kernels.rms_norm` and `Kernels.add`, one after the other.
        """
        ...


@runtime_checkable
class HasAddNorm(Protocol):
    """A provider with the operation `add_rms_norm`; used where it serves `rms_norm` and `add` as well."""

    @property
    def add_rms_norm(self) -> AddNorm:
        """Norm, addition and norm in one call."""
        ...


@runtime_checkable
class HasTakeRows(Protocol):
    """A provider with the operation `take_rows`."""

    def take_rows(self, x: Tensor, rows: Tensor, out: Tensor) -> None:
        """out[R, H] = x[rows], rows int64 [R] within x."""
        ...


@runtime_checkable
class HasRoute(Protocol):
    """A provider with the operation `route`."""

    @property
    def route(self) -> RouteKernel:
        """The choice of experts."""
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


@runtime_checkable
class HasHeads(Protocol):
    """A provider with the operation `heads`, of the types whose linear kernels it prepares."""

    def heads(self, weight: Tensor, activation: Activation) -> HeadsKernel:
        """A dense weight [H, N, K], a matrix for each head."""
        ...


@runtime_checkable
class HasRace(Protocol):
    """A provider that samples."""

    @property
    def race(self) -> RaceKernel:
        """Sampling with the engine's keyed noise."""
        ...


@runtime_checkable
class HasMaskedRace(Protocol):
    """A provider whose sampling kernel takes token masks. Rows with a mask are copied for one that does not."""

    @property
    def masked_race(self) -> MaskedRaceKernel:
        """The same as `race` without masks."""
        ...


@runtime_checkable
class HasLogprobs(Protocol):
    """A provider that tells log-probabilities."""

    @property
    def logprobs(self) -> LogprobsKernel:
        """Of the chosen token and the most likely ones."""
        ...


@runtime_checkable
class BeginsSteps(Protocol):
    """A provider that changes how it computes, without a change of bits, between two steps only."""

    def begin_step(self) -> None:
        """Called in front of each step of the model, by the thread that computes it."""
        ...
