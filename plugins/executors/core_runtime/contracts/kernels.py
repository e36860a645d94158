"""Kind `kernels`: the operations of a forward pass, and the optional ones that a provider may have.

Owns: `Kernels` and its optional parts, but for matrices and experts, which have files of their own. Never does: import torch
at run time.
Called by: plugins (they implement these), executor, models and config (they call these).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from core.api.reason import Reason
from core.api.specs import Activation, KernelQuery
from core_runtime.contracts.linear_kernels import LinearKernel
from core_runtime.contracts.sampling import LogprobsKernel, MaskedRaceKernel, RaceKernel

if TYPE_CHECKING:
    from torch import Tensor

    from core_runtime.weights.formats import CanonicalWeight


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
    """A provider whose operations can do more than every provider's; see `core_runtime.layers.activations` for their names."""

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
