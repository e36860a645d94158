"""The kernels of one device: for each operation the best provider that supports it.

Owns: the choice among providers, once, when a device is opened. Never does: compute.
Called by: platforms (they build one for their runtime), models and layers (they call its operations).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import TypeGuard

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
    HasGroupedExperts,
    HeadsKernel,
    Kernels,
    LinearKernel,
    LogprobsKernel,
    PreparesInto,
    RaceKernel,
    RouteKernel,
)
from core.weights.formats import CanonicalWeight, Dense

OPERATIONS = ("rms_norm", "rms_norm_heads", "rotary", "gated", "add", "scale", "soft_cap", "take_rows")

Room = Callable[[int], Tensor]
"""Gives uint8 memory of so many bytes."""


class KernelSet:
    """Providers in order of preference, the reference kernels last (or those by rows).

    Operations are bound once and cost no extra call.
    numerics: names everything that results depend on here. native: whether torch's own threads are of no use.
    race, logprobs: the sampling kernels of the best provider that has them, or None. route: the choice of experts.
    capturable: whether every operation can be recorded by the runtime's `capture`.
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
        last = () if providers and isinstance(providers[-1], RowKernels) else (ReferenceKernels(),)
        self.providers: tuple[Kernels, ...] = (*providers, *last)
        self.device = device
        self.numerics = "+".join(provider.numerics for provider in self.providers)
        self.native = len(providers) > 0
        chosen = {op: self._best(KernelQuery(op, device)) for op in OPERATIONS}
        for op, provider in chosen.items():
            setattr(self, op, getattr(provider, op))
        self.capturable = all(getattr(provider, "capturable", False) for provider in chosen.values())
        self.race: RaceKernel | None = getattr(next(self._having("race"), None), "race", None)
        self.logprobs: LogprobsKernel | None = getattr(next(self._having("logprobs"), None), "logprobs", None)
        self.route: RouteKernel = next(self._having("route")).route  # type: ignore[attr-defined]

    def supports(self, query: KernelQuery) -> list[Reason]:
        """The reference supports everything."""
        return []

    def linear(
        self, weight: CanonicalWeight, *, activation: Activation, bias: Tensor | None = None, room: Room | None = None
    ) -> LinearKernel:
        """Prepare a weight with the best provider for its format, shape and activation.

        room: gives memory for so many bytes to providers that can prepare into it; None: all allocate for themselves.
        """
        attributes = {} if not hasattr(weight, "group_size") else {"group_size": weight.group_size}
        query = KernelQuery("linear", self.device, weight_format(weight), activation, weight.shape, attributes)
        return self._prepared(self._best(query), weight, activation, bias, room)

    def experts(self, gate_up: Sequence[Linear], down: Sequence[Linear], activation: str) -> ExpertsKernel:
        """The experts of a layer, from two linear layers each; run together where their provider can."""
        first, second = [[e.single for e in side if e.single is not None] for side in (gate_up, down)]
        for provider in self._having("experts") if len(first) == len(second) == len(gate_up) else ():
            layer: ExpertsKernel | None = provider.experts(first, second, activation)  # type: ignore[attr-defined]
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
        alone = [KernelQuery("linear", side.device, side.format, side.activation, side.shape[1:]) for side in sides]
        provider, *others = [self._best(query) for query in alone]
        if any(other is not provider for other in others) or not isinstance(provider, HasGroupedExperts):
            return None
        return None if any(provider.supports(query) for query in sides) else provider

    def heads(self, weight: Tensor, *, activation: Activation, room: Room | None = None) -> HeadsKernel:
        """A dense weight [H, N, K], a matrix for each head: run together where the provider of its linear kernels can.

        room: see `linear`.
        """
        query = KernelQuery(
            "linear", self.device, str(weight.dtype).removeprefix("torch."), activation, weight.shape[1:]
        )
        provider = self._best(query)
        if hasattr(provider, "heads") and not provider.supports(KernelQuery("heads", self.device)):
            together: HeadsKernel = provider.heads(weight, activation)
            return together
        plain = [Dense(one.contiguous()) for one in weight]
        return LinearHeads([self._prepared(provider, one, activation, None, room) for one in plain])

    def _prepared(
        self,
        provider: Kernels,
        weight: CanonicalWeight,
        activation: Activation,
        bias: Tensor | None,
        room: Room | None,
    ) -> LinearKernel:
        if room is None or not _prepares_into(provider):
            return provider.linear(weight, activation=activation, bias=bias)
        into = room(provider.prepared_nbytes(weight, activation=activation))
        return provider.linear(weight, activation=activation, bias=bias, into=into)

    def _having(self, op: str) -> Iterator[Kernels]:
        """The providers that have the optional operation `op` here, best first."""
        query = KernelQuery(op, self.device)
        return (p for p in self.providers if hasattr(p, op) and not p.supports(query))

    def _best(self, query: KernelQuery) -> Kernels:
        return next(p for p in self.providers if hasattr(p, query.op) and not p.supports(query))


def _prepares_into(provider: Kernels) -> TypeGuard[PreparesInto]:
    """Whether it has both `prepared_nbytes` and a `linear` with `into`: a subclass may have replaced the latter."""
    return isinstance(provider, PreparesInto) and "into" in inspect.signature(provider.linear).parameters


def weight_format(weight: CanonicalWeight) -> str:
    """The format name that kernels are asked about: `float32`, `bfloat16`, `int4_groups`, ..."""
    dense = getattr(weight, "weight", None)
    return weight.name if dense is None else str(dense.dtype).removeprefix("torch.")
