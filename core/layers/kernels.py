"""The kernels of one device: for each operation the best provider that supports it.

Owns: the choice among providers, once, when a device is opened. Never does: compute.
Called by: platforms (they build one for their runtime), models and layers (they call its operations).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeGuard

from torch import Tensor

from core.api.reason import Reason
from core.api.specs import Activation, KernelQuery
from core.layers.experts import ReferenceExperts
from core.layers.heads import LinearHeads
from core.layers.linear import Linear
from core.layers.reference import ReferenceKernels
from core.layers.rows import RowKernels
from core.plugin.contracts import (
    ExpertsKernel,
    GatedLinear,
    HasExperts,
    HasGated,
    HasGroupedExperts,
    HasHeads,
    HasLogprobs,
    HasRace,
    HasRoute,
    HasSoftCap,
    HasTakeRows,
    HeadsKernel,
    Kernels,
    LinearKernel,
    LogprobsKernel,
    PreparesInto,
    RaceKernel,
    RouteKernel,
    SumsInSegments,
    is_recordable,
)
from core.weights.formats import CanonicalWeight, Dense, HasGroups

OPERATIONS = ("rms_norm", "rms_norm_heads", "rotary", "gated", "add", "scale", "soft_cap", "take_rows")
"""The operations that the blocks and the head of every model call besides their matrices."""

Room = Callable[[int], Tensor]
"""Gives uint8 memory of so many bytes."""


class KernelSet:
    """Providers in order of preference, the reference kernels last (or those by rows).

    Operations are bound once and cost no extra call.

    numerics: names everything that results depend on here.
    native: whether torch's own threads are of no use.
    race: the sampling kernel of the best provider that has one, or None.
    logprobs: the kernel for log-probabilities of the best provider that has one, or None.
    route: the choice of experts.
    capturable: whether every operation can be recorded by the runtime's `capture`.
    route_capturable: the same of `route`, which models without experts never call.
    """

    name = "kernel_set"
    rms_norm: Callable[[Tensor, Tensor, float, Tensor], None]
    rms_norm_heads: Callable[[Tensor, Tensor, float], None]
    rotary: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
    gated: Callable[[Tensor, str, Tensor], None]
    add: Callable[[Tensor, Tensor], None]
    scale: Callable[[Tensor, float], None]
    soft_cap: Callable[[Tensor, float], None]
    take_rows: Callable[[Tensor, Tensor, Tensor], None]

    def __init__(self, providers: Sequence[Kernels], device: str = "cpu") -> None:
        self.providers: tuple[Kernels, ...] = tuple(providers)
        by_rows = len(providers) > 0 and isinstance(providers[-1], RowKernels)
        if not by_rows:
            self.providers += (ReferenceKernels(),)
        self.device = device
        self.numerics = "+".join(provider.numerics for provider in self.providers)
        self.native = len(providers) > 0
        self._bind_operations()
        races = (p.race for p in self._serving("race") if isinstance(p, HasRace))
        self.race: RaceKernel | None = next(races, None)
        telling = (p.logprobs for p in self._serving("logprobs") if isinstance(p, HasLogprobs))
        self.logprobs: LogprobsKernel | None = next(telling, None)
        router = next(p for p in self._serving("route") if isinstance(p, HasRoute))
        self.route: RouteKernel = router.route
        self.route_capturable = is_recordable(router)
        self._plain_linears: set[type] = set()

    def _bind_operations(self) -> None:
        """Take each operation of a forward pass from the best provider that serves it."""
        norm = next(self._serving("rms_norm"))
        heads_norm = next(self._serving("rms_norm_heads"))
        rotary = next(self._serving("rotary"))
        gate = next(self._serving("gated"))
        add = next(self._serving("add"))
        scale = next(self._serving("scale"))
        cap = next(p for p in self._serving("soft_cap") if isinstance(p, HasSoftCap))
        take = next(p for p in self._serving("take_rows") if isinstance(p, HasTakeRows))
        self.rms_norm = norm.rms_norm
        self.rms_norm_heads = heads_norm.rms_norm_heads
        self.rotary = rotary.rotary
        self.gated = gate.gated
        self.add = add.add
        self.scale = scale.scale
        self.soft_cap = cap.soft_cap
        self.take_rows = take.take_rows
        self._gate_rank = self.providers.index(gate)
        chosen = (norm, heads_norm, rotary, gate, add, scale, cap, take)
        self.capturable = all(is_recordable(provider) for provider in chosen)

    def supports(self, query: KernelQuery) -> list[Reason]:
        """The reference supports everything."""
        return []

    def linear(
        self,
        weight: CanonicalWeight,
        *,
        activation: Activation,
        bias: Tensor | None = None,
        room: Room | None = None,
        segments: int = 1,
    ) -> LinearKernel:
        """Prepare a weight with the best provider for its format, shape and activation.

        room: gives memory for so many bytes to providers that can prepare into it; None: all allocate for themselves.
        segments: of K that have sums of their own, where the provider can do that (see `SumsInSegments`).
        """
        attributes: dict[str, int] = {}
        if isinstance(weight, HasGroups):
            attributes["group_size"] = weight.group_size
        form = weight_format(weight)
        query = KernelQuery("linear", self.device, form, activation, weight.shape, attributes)
        provider = self._best_linear(query)
        kernel = self._prepared(provider, weight, activation, bias, room, segments)
        if self.providers.index(provider) > self._gate_rank:
            self._plain_linears.add(type(kernel))
        return kernel

    def gate_within(self, linear: Linear) -> GatedLinear | None:
        """A layer's product with the gated activation behind it, where its kernel has that.

        None, too, where `gated` comes from a provider that was preferred to the kernel's own: that one's gate is meant.
        """
        kernel = linear.single
        if not isinstance(kernel, HasGated) or type(kernel) in self._plain_linears:
            return None
        return kernel.gated

    def experts(self, gate_up: Sequence[Linear], down: Sequence[Linear], activation: str) -> ExpertsKernel:
        """The experts of a layer, from two linear layers each; run together where their provider can."""
        first = [expert.single for expert in gate_up if expert.single is not None]
        second = [expert.single for expert in down if expert.single is not None]
        if len(first) == len(second) == len(gate_up):
            for provider in self._serving("experts"):
                if not isinstance(provider, HasExperts):
                    continue
                layer = provider.experts(first, second, activation)
                if layer is not None:
                    return layer
        return ReferenceExperts(gate_up, down, activation, self.gated)

    def experts_query(self, form: str, activation: Activation, shape: tuple[int, int, int]) -> KernelQuery:
        """What providers are asked about the experts of a layer as one weight of `shape` (E, N, K)."""
        return KernelQuery("grouped_experts", self.device, form, activation, shape)

    def grouping(self, sides: Sequence[KernelQuery]) -> HasGroupedExperts | None:
        """The provider that takes both sides of a layer of experts whole, or None.

        It is the one that would be the best for each expert alone.
        """
        best: list[Kernels] = []
        for side in sides:
            alone = KernelQuery("linear", side.device, side.format, side.activation, side.shape[1:])
            best.append(self._best_linear(alone))
        provider = best[0]
        if any(other is not provider for other in best) or not isinstance(provider, HasGroupedExperts):
            return None
        if any(provider.supports(query) for query in sides):  # reasons against it
            return None
        return provider

    def heads(self, weight: Tensor, *, activation: Activation, room: Room | None = None) -> HeadsKernel:
        """A dense weight [H, N, K], a matrix for each head: run together where the provider of its linear kernels can.

        room: see `linear`.
        """
        format_name = str(weight.dtype).removeprefix("torch.")
        query = KernelQuery("linear", self.device, format_name, activation, weight.shape[1:])
        provider = self._best_linear(query)
        together = KernelQuery("heads", self.device)
        if isinstance(provider, HasHeads) and not provider.supports(together):
            return provider.heads(weight, activation)
        kernels = []
        for one in weight:
            plain = Dense(one.contiguous())
            kernels.append(self._prepared(provider, plain, activation, None, room))
        return LinearHeads(kernels)

    def _prepared(
        self,
        provider: Kernels,
        weight: CanonicalWeight,
        activation: Activation,
        bias: Tensor | None,
        room: Room | None,
        segments: int = 1,
    ) -> LinearKernel:
        options: dict[str, Any] = {}
        if segments > 1 and isinstance(provider, SumsInSegments):
            options["segments"] = min(segments, provider.max_segments)
        if room is not None and isinstance(weight, CanonicalWeight) and _prepares_into(provider):
            options["into"] = room(provider.prepared_nbytes(weight, activation=activation))
        return provider.linear(weight, activation=activation, bias=bias, **options)

    def _serving(self, op: str) -> Iterator[Kernels]:
        """The providers without a reason against the operation `op` here, best first."""
        query = KernelQuery(op, self.device)
        return (provider for provider in self.providers if not provider.supports(query))

    def _best_linear(self, query: KernelQuery) -> Kernels:
        return next(provider for provider in self.providers if not provider.supports(query))


def _prepares_into(provider: Kernels) -> TypeGuard[PreparesInto]:
    """Whether it has both `prepared_nbytes` and a `linear` with `into`: a subclass may have replaced the latter."""
    return isinstance(provider, PreparesInto) and "into" in inspect.signature(provider.linear).parameters


def weight_format(weight: CanonicalWeight) -> str:
    """The format name that kernels are asked about: `float32`, `bfloat16`, `int4_groups`, ..."""
    if isinstance(weight, Dense):
        return str(weight.weight.dtype).removeprefix("torch.")
    return weight.name
