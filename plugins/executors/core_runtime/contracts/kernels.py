"""Kind `kernels`: the operations of a forward pass, and the optional ones that a provider may have.

Owns: `Kernels` and its optional parts, except matrices and experts, which have files of their own. Never does: import torch
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
    """Prepared matrices, one per head. Optional part: `Recordable`."""

    nbytes: int

    def __call__(self, x: Tensor, out: Tensor) -> None:
        """Compute out[T, H, N] = x[T, H, K] @ W[H, N, K].T, each head with its own matrix; rows and heads may be strided."""
        ...


@runtime_checkable
class Kernels(Protocol):
    """Kind `kernels`: the operations of a forward pass on one device.

    Optional parts, each a Protocol of its own: `HasLayerNorm`, `HasActivate`, `HasOpenGate`, `HasFeatures`, `HasSoftCap`,
    `HasAddNorm`, `HasTakeNorm`, `HasTakeRows`, `HasRoute`, `HasExperts`, `HasLowRank`, `HasHeads`, `HasRace`,
    `HasLogprobs`. Each is used if `supports` returns no reason against the operation of that name. The reference
    operations are used where no provider serves one. Without `race` and `logprobs` the sampler uses numpy; without `heads`
    there is a linear kernel per head. A provider whose calls can be recorded is `Recordable`; one that compiles its
    kernels `WarmsUp`.
    """

    name: str
    numerics: str

    def supports(self, query: KernelQuery) -> list[Reason]:
        """Return what is missing for the operation; empty means supported."""
        ...

    def linear(self, weight: CanonicalWeight, *, activation: Activation, bias: Tensor | None = None) -> LinearKernel:
        """Repack a weight once; the caller then drops it. activation: precision to which x is rounded before the product."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """Compute out[T, H] = x / sqrt(mean(x²) + eps) * weight."""
        ...

    def rms_norm_heads(self, x: Tensor, weight: Tensor, eps: float) -> None:
        """Normalize in place over the last axis of x [T, H, D] (rows may be strided); weight [D].

        With the feature `norms_by_head` weight may be [H, D], one row per head.
        """
        ...

    def rotary(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> None:
        """Rotate q [T, Hq, D] and k [T, Hkv, D] in place, half-split pairs (i, i + R/2) of the first R numbers of a head.

        cos, sin: [max_len, R/2] float32. R is D; with the feature `partial_rotary` it may be less.
        """
        ...

    def gated(self, x: Tensor, activation: str, out: Tensor) -> None:
        """Compute out[T, I] = act(x[:, :I]) * x[:, I:], activation `silu` or `gelu_tanh`, or of a kind among the features."""
        ...

    def add(self, x: Tensor, residual: Tensor) -> None:
        """Add x to the residual, in place."""
        ...

    def scale(self, x: Tensor, factor: float) -> None:
        """Multiply x by factor, in place."""
        ...


@runtime_checkable
class HasFeatures(Protocol):
    """A provider with more than the common operations; see `core_runtime.layers.activations` for names of activations."""

    @property
    def features(self) -> Collection[str]:
        """Features of single operations:

        kinds of activations: supported by `gated`, and by `activate` if there is one.
        partial_rotary: `rotary` can rotate only the first numbers of each head.
        norms_by_head: `rms_norm_heads` accepts a weight for each head.
        sparse_mixer, routing_epsilon: `route` supports these scores, and `RoutingSpec.epsilon`.
        zero_points, bfloat16_scales, input_order: `linear` accepts integer groups with them; see `IntGroups`.
        """
        ...


@runtime_checkable
class HasLayerNorm(Protocol):
    """A provider with the operations `layer_norm` and `layer_norm_heads`."""

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor) -> None:
        """Compute out[T, H] = (x - mean) / sqrt(variance + eps) * weight (+ bias), in float32 inside; out may be x."""
        ...

    def layer_norm_heads(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> None:
        """Normalize in place over the last axis of x [T, H, D] (rows may be strided), weight and bias [D] or [H, D]."""
        ...


@runtime_checkable
class HasActivate(Protocol):
    """A provider with the operation `activate`, for the kinds of activations among its features."""

    def activate(self, x: Tensor, activation: str, out: Tensor) -> None:
        """Compute out[T, I] = act(x), for an MLP without a gate."""
        ...


@runtime_checkable
class HasOpenGate(Protocol):
    """A provider with the operation `open_gate`."""

    def open_gate(self, gate: Tensor, x: Tensor) -> None:
        """Multiply x[T, W] by sigmoid(gate[T, G]), in place: each number applies to W / G neighbours. Rows may be strided."""
        ...


@runtime_checkable
class HasSoftCap(Protocol):
    """A provider with the operation `soft_cap`."""

    def soft_cap(self, x: Tensor, cap: float) -> None:
        """Compute x[T, V] = cap * tanh(x / cap), in place."""
        ...


class AddNorm(Protocol):
    """Kernel for the end of one branch of the residual stream and the beginning of the next."""

    def __call__(
        self, x: Tensor, before: Tensor | None, residual: Tensor, behind: Tensor, eps: float, out: Tensor
    ) -> None:
        """Compute residual[T, H] += x[T, H], where x is normed by `rms_norm` with the weight `before` unless that is
        None; then out[T, H] = `rms_norm` of residual with the weight `behind`. The contents of x afterwards are
        undefined.

        The bits are those of `Kernels.rms_norm` and `Kernels.add`, called in sequence.
        """
        ...


@runtime_checkable
class HasAddNorm(Protocol):
    """A provider with the operation `add_rms_norm`; used where it serves `rms_norm` and `add` as well."""

    @property
    def add_rms_norm(self) -> AddNorm:
        """The kernel for norm, addition and norm in one call."""
        ...


class TakeNorm(Protocol):
    """Kernel for the beginning of a head: the norms of some rows."""

    def __call__(self, x: Tensor, rows: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """Compute out[R, H] = `rms_norm` of x[rows], rows int64 [R] within x.

        The bits are those of `HasTakeRows.take_rows` and `Kernels.rms_norm`, called in sequence.
        """
        ...


@runtime_checkable
class HasTakeNorm(Protocol):
    """A provider with the operation `take_rms_norm`; used where it serves `take_rows` and `rms_norm` as well."""

    @property
    def take_rms_norm(self) -> TakeNorm:
        """The kernel for taking rows and their norms in one call."""
        ...


@runtime_checkable
class HasTakeRows(Protocol):
    """A provider with the operation `take_rows`."""

    def take_rows(self, x: Tensor, rows: Tensor, out: Tensor) -> None:
        """Copy rows: out[R, H] = x[rows], rows int64 [R] within x."""
        ...


@runtime_checkable
class HasHeads(Protocol):
    """A provider with the operation `heads`, for the types whose linear kernels it prepares."""

    def heads(self, weight: Tensor, activation: Activation) -> HeadsKernel:
        """Prepare a dense weight [H, N, K], one matrix per head."""
        ...


@runtime_checkable
class HasRace(Protocol):
    """A provider that samples."""

    @property
    def race(self) -> RaceKernel:
        """The kernel that samples with the engine's keyed noise."""
        ...


@runtime_checkable
class HasMaskedRace(Protocol):
    """A provider whose sampling kernel accepts token masks. Without one, rows with a mask are copied."""

    @property
    def masked_race(self) -> MaskedRaceKernel:
        """The masked sampling kernel; without masks it computes the same as `race`."""
        ...


@runtime_checkable
class HasLogprobs(Protocol):
    """A provider with a logprobs kernel."""

    @property
    def logprobs(self) -> LogprobsKernel:
        """The kernel for logprobs of the chosen token and the most likely ones."""
        ...


@runtime_checkable
class BeginsSteps(Protocol):
    """A provider that may change its way of computing (not its results) between two steps only."""

    def begin_step(self) -> None:
        """Prepare for a step of the model; called by the thread that computes it."""
        ...
