"""The kernels of one device: for each operation, the best provider that supports it.

Owns: the choice among providers, once, when a device is opened. Never does: compute.
Called by: platforms (they build one for their runtime), models and layers (they call its operations).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from core.api.reason import Reason
from core.api.specs import Activation, KernelQuery
from core_runtime.contracts import (
    ActivatedLinear,
    AddNorm,
    BeginsSteps,
    ExpertsKernel,
    HasActivate,
    HasActivated,
    HasAddNorm,
    HasGated,
    HasGroupedExperts,
    HasHeads,
    HasLayerNorm,
    HasLogprobs,
    HasLowRank,
    HasMaskedRace,
    HasOpenGate,
    HasRace,
    HasRoute,
    HasSoftCap,
    HasTakeNorm,
    HasTakeRows,
    HeadsKernel,
    Kernels,
    LinearKernel,
    LogprobsKernel,
    LowRankForm,
    LowRankTable,
    MaskedRaceKernel,
    RaceKernel,
    RouteKernel,
    RowLayouts,
    SavedKernel,
    SavesKernels,
    SumsInSegments,
    TakeNorm,
    is_recordable,
)
from core_runtime.layers.activations import parse
from core_runtime.layers.experts import COMBINE_RANGES, ReferenceExperts
from core_runtime.layers.features import ByFeature, features_of
from core_runtime.layers.heads import LinearHeads
from core_runtime.layers.joint_experts import joint_experts
from core_runtime.layers.linear import Linear
from core_runtime.layers.prepared_linear import prepared_linear
from core_runtime.layers.preparing import Room, prepared, reads_rows
from core_runtime.layers.reference import FEATURES, ReferenceKernels
from core_runtime.layers.rows import RowKernels
from core_runtime.specs.operation_order import OPERATIONS, SPECIAL_OPERATIONS
from core_runtime.weights.formats import CanonicalWeight, Dense, HasGroups, IntGroups, StoredRows, SuperGroups
from core_runtime.weights.prepared_inputs import PreparedInputs


class KernelSet:
    """All operations of a device. Providers are in order of preference; the reference kernels (or those by rows) come last.

    Operations are bound once and cost no extra call.

    numerics: names of everything that results of these operations depend on.
    native: whether there is a native provider, so that torch's own threads are not needed.
    race: the sampling kernel of the best provider that has one, or None.
    masked_race: sampling kernel that takes token masks, of the best provider that has one, or None.
    logprobs: logprobs kernel of the best provider that has one, or None.
    route: the choice of experts.
    add_rms_norm: norm, addition and norm in one call, if one provider serves both operations and has it; else None.
    take_rms_norm: rows and their norms in one call, if one provider serves both operations and has it; else None.
    step_hooks: functions to call before each step.
    capturable: whether every operation that all models call can be recorded by the runtime's `capture`.
    recorded: operations and features that can be recorded; `capturable` does not cover operations that only
        some models call (`layer_norm`, `layer_norm_heads`, `activate`, `route` and all features).
    """

    name = "kernel_set"
    rms_norm: Callable[[Tensor, Tensor, float, Tensor], None]
    rms_norm_heads: Callable[[Tensor, Tensor, float], None]
    layer_norm: Callable[[Tensor, Tensor, Tensor | None, float, Tensor], None]
    layer_norm_heads: Callable[[Tensor, Tensor, Tensor | None, float], None]
    rotary: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
    gated: Callable[[Tensor, str, Tensor], None]
    activate: Callable[[Tensor, str, Tensor], None]
    open_gate: Callable[[Tensor, Tensor], None]
    add: Callable[[Tensor, Tensor], None]
    scale: Callable[[Tensor, float], None]
    soft_cap: Callable[[Tensor, float], None]
    take_rows: Callable[[Tensor, Tensor, Tensor], None]
    route: RouteKernel
    race: RaceKernel | None
    masked_race: MaskedRaceKernel | None
    logprobs: LogprobsKernel | None
    add_rms_norm: AddNorm | None
    take_rms_norm: TakeNorm | None

    def __init__(self, providers: Sequence[Kernels], device: str = "cpu") -> None:
        self.providers: tuple[Kernels, ...] = tuple(providers)
        by_rows = len(providers) > 0 and isinstance(providers[-1], RowKernels)
        if not by_rows:
            self.providers += (ReferenceKernels(),)
        self.device = device
        # Of the weights of adapters; None: `device`, which may be a name that only its platform knows.
        self.memory: torch.device | None = None
        self.numerics = "+".join(provider.numerics for provider in self.providers)
        self.native = len(providers) > 0
        self._bind_operations()
        self._bind_sampling()
        router = next(p for p in self._serving("route") if isinstance(p, HasRoute))
        self.route = self._with_features("route", router.route)
        self._apart: set[tuple[type, str]] = set()  # kernels, and operations that another provider does for them
        self.step_hooks = [provider.begin_step for provider in self.providers if isinstance(provider, BeginsSteps)]
        self._saving = [provider for provider in self.providers if isinstance(provider, SavesKernels)]

    def _bind_operations(self) -> None:
        """Bind each operation of a forward pass to the best provider that serves it."""
        norm = next(self._serving("rms_norm"))
        heads_norm = next(self._serving("rms_norm_heads"))
        rotary = next(self._serving("rotary"))
        gate = next(self._serving("gated"))
        add = next(self._serving("add"))
        scale = next(self._serving("scale"))
        cap = next(p for p in self._serving("soft_cap") if isinstance(p, HasSoftCap))
        take = next(p for p in self._serving("take_rows") if isinstance(p, HasTakeRows))
        self.rms_norm = norm.rms_norm
        self.rms_norm_heads = self._with_features("rms_norm_heads", heads_norm.rms_norm_heads)
        self.rotary = self._with_features("rotary", rotary.rotary)
        self.gated = self._with_features("gated", gate.gated)
        self.add = add.add
        self.scale = scale.scale
        self.soft_cap = cap.soft_cap
        self.take_rows = take.take_rows
        centring = next(p for p in self._serving("layer_norm") if isinstance(p, HasLayerNorm))
        by_head = next(p for p in self._serving("layer_norm_heads") if isinstance(p, HasLayerNorm))
        active = next(p for p in self._serving("activate") if isinstance(p, HasActivate))
        self.layer_norm = centring.layer_norm
        self.layer_norm_heads = by_head.layer_norm_heads
        self.activate = self._with_features("activate", active.activate)
        opening = next(p for p in self._serving("open_gate") if isinstance(p, HasOpenGate))
        self.open_gate = opening.open_gate
        self._ranks = {"gated": self.providers.index(gate), "activate": self.providers.index(active)}
        self._bind_joined(norm, add, take)
        chosen = (norm, heads_norm, rotary, gate, add, scale, cap, take)
        self.capturable = all(is_recordable(provider) for provider in chosen)

    def _bind_sampling(self) -> None:
        """Bind the operations on logits, each None where no provider has it."""
        races = (p.race for p in self._serving("race") if isinstance(p, HasRace))
        masked = (p.masked_race for p in self._serving("race") if isinstance(p, HasMaskedRace))
        reporting = (p.logprobs for p in self._serving("logprobs") if isinstance(p, HasLogprobs))
        self.race = next(races, None)
        self.masked_race = next(masked, None)
        self.logprobs = next(reporting, None)

    def _bind_joined(self, norm: Kernels, add: Kernels, take: Kernels) -> None:
        """Bind the calls that do two operations, each if one provider serves both: else it could have other bits."""
        joining = next((p for p in self._serving("add_rms_norm") if isinstance(p, HasAddNorm)), None)
        self.add_rms_norm = None
        if joining is norm and joining is add and isinstance(joining, HasAddNorm):
            self.add_rms_norm = joining.add_rms_norm
        taking = next((p for p in self._serving("take_rms_norm") if isinstance(p, HasTakeNorm)), None)
        self.take_rms_norm = None
        if isinstance(taking, HasTakeNorm) and taking is norm and taking is take:
            self.take_rms_norm = taking.take_rms_norm

    def _with_features(self, op: str, best: Callable[..., None]) -> Callable[..., None]:
        """Return the best provider's operation, or a dispatcher by feature if that provider lacks some features."""
        serving = list(self._serving(op))
        if FEATURES.issubset(features_of(serving[0])):
            return best
        return ByFeature(op, serving)

    @property
    def recorded(self) -> frozenset[str]:
        """Operations and features that can be recorded; see the class."""
        found = set()
        for op in (*OPERATIONS, *SPECIAL_OPERATIONS):
            first = next(p for p in self._serving(op) if hasattr(p, op))
            if is_recordable(first):
                found.add(op)
        for feature in FEATURES:
            able = [p for p in self.providers if feature in features_of(p)]
            if is_recordable(able[0]):
                found.add(feature)
        return frozenset(found)

    def supports(self, query: KernelQuery) -> list[Reason]:
        """Return no reasons: the reference supports everything."""
        return []

    @property
    def row_layouts(self) -> frozenset[str]:
        """Layouts in which some provider reads rows as they lie in files."""
        able = [provider.row_layouts for provider in self.providers if isinstance(provider, RowLayouts)]
        return frozenset().union(*able)

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

        room: allocates memory for providers that can prepare into it; None: all allocate for themselves.
        segments: number of segments of K with partial sums, if the provider supports them (see `SumsInSegments`).
        """
        if isinstance(weight, PreparedInputs):
            inner = self.linear(weight.weight, activation=activation, bias=bias, room=room, segments=segments)
            return prepared_linear(inner, weight, lambda matrix: self.linear(matrix, activation="none"))
        provider = self._provider_for(weight, activation)
        if isinstance(weight, StoredRows) and not reads_rows(provider, weight.layout):
            weight = weight.canonical()
        kernel = prepared(provider, weight, activation, bias, room, segments)
        rank = self.providers.index(provider)
        for operation, best in self._ranks.items():
            if rank > best:
                self._apart.add((type(kernel), operation))
        return kernel

    def sums_in_segments(self, weight: CanonicalWeight, activation: Activation) -> bool:
        """Whether the provider that prepares a weight can divide its inputs into segments; see `SumsInSegments`."""
        return isinstance(self._provider_for(weight, activation), SumsInSegments)

    def _provider_for(self, weight: CanonicalWeight, activation: Activation) -> Kernels:
        """Return the best provider for a weight's format, shape and activation."""
        attributes: dict[str, int] = {}
        weight = weight.weight if isinstance(weight, PreparedInputs) else weight
        described = weight.like if isinstance(weight, StoredRows) else weight
        if isinstance(described, HasGroups):
            attributes["group_size"] = described.group_size
        form = weight_format(described)
        query = KernelQuery("linear", self.device, form, activation, weight.shape, attributes)
        needed = described.features if isinstance(described, IntGroups | SuperGroups) else frozenset()
        return self._best_linear(query, needed)

    def save(
        self,
        kernel: LinearKernel,
        weight: CanonicalWeight,
        *,
        activation: Activation,
        bias: Tensor | None,
        segments: int,
    ) -> tuple[str, SavedKernel] | None:
        """Return layout and saved form of a kernel that `linear` has just made of these; None if no provider can save it."""
        for provider in self._saving:
            saved = provider.save(kernel, weight, activation=activation, bias=bias, segments=segments)
            if saved is not None:
                return provider.layout, saved
        return None

    def restore(self, layout: str, saved: SavedKernel) -> LinearKernel:
        """Restore a saved kernel with the provider of its layout. Raises ValueError without such a provider, or for
        wrong facts.
        """
        for provider in self._saving:
            if provider.layout == layout:
                return provider.restore(saved)
        known = ", ".join(provider.layout for provider in self._saving)
        raise ValueError(f"no kernels here have the layout '{layout}'; there is {known or 'none'}")

    def gate_within(self, linear: Linear, activation: str) -> ActivatedLinear | None:
        """Return a layer's product fused with its gated activation, if its kernel has that.

        Also None if `gated` comes from a provider that is preferred to the kernel's own, whose gate must then be used.
        """
        kernel = linear.single
        if not isinstance(kernel, HasGated) or not self._goes_with(kernel, "gated", activation):
            return None
        return kernel.gated

    def activate_within(self, linear: Linear, activation: str) -> ActivatedLinear | None:
        """Return a layer's product fused with an activation without a gate, if its kernel has that; see `gate_within`."""
        kernel = linear.single
        if not isinstance(kernel, HasActivated) or not self._goes_with(kernel, "activate", activation):
            return None
        return kernel.activated

    def _goes_with(self, kernel: LinearKernel, operation: str, activation: str) -> bool:
        """Whether a kernel's own form of an operation may be used, and supports the activation."""
        return (type(kernel), operation) not in self._apart and parse(activation).kind in features_of(kernel)

    def experts(
        self,
        gate_up: Sequence[Linear],
        down: Sequence[Linear],
        activation: str,
        *,
        weight_inputs: bool = False,
        max_ranges: int = COMBINE_RANGES,
    ) -> ExpertsKernel:
        """Make the experts of a layer from two linear layers each; run together if their provider can.

        Their sizes show whether there is a gate: the first layer has as many outputs as the second has inputs, or twice as
        many. weight_inputs, max_ranges: see `ReferenceExperts`.
        """
        plain = all(up.out_features == back.in_features for up, back in zip(gate_up, down, strict=False))
        options: dict[str, Any] = {"weight_inputs": weight_inputs} if weight_inputs or plain else {}
        if max_ranges < COMBINE_RANGES:
            options["max_ranges"] = max_ranges
        together = joint_experts(self._serving("experts"), gate_up, down, activation, options)
        if together is not None:
            return together
        between = self.activate if plain else self.gated
        return ReferenceExperts(gate_up, down, activation, between, weight_inputs=weight_inputs, max_ranges=max_ranges)

    def experts_query(self, form: str, activation: Activation, shape: tuple[int, int, int]) -> KernelQuery:
        """Return the query for the experts of a layer as one weight of `shape` (E, N, K)."""
        return KernelQuery("grouped_experts", self.device, form, activation, shape)

    def grouping(self, sides: Sequence[KernelQuery]) -> HasGroupedExperts | None:
        """Return the first provider that takes both sides of a layer of experts as a whole. None without one, or if a better
        provider takes an expert alone.
        """
        alone = [KernelQuery("linear", side.device, side.format, side.activation, side.shape[1:]) for side in sides]
        for provider in self.providers:
            if isinstance(provider, HasGroupedExperts) and not any(provider.supports(side) for side in sides):
                return provider
            if not all(provider.supports(query) for query in alone):
                return None
        return None

    def heads(self, weight: Tensor, *, activation: Activation, room: Room | None = None) -> HeadsKernel:
        """Prepare a dense weight [H, N, K], one matrix per head: run together if the provider of its linear kernels can.

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
            kernels.append(prepared(provider, plain, activation, None, room))
        return LinearHeads(kernels)

    def low_rank(
        self, shape: tuple[int, int], num_rows: int, dtype: torch.dtype, *, max_rank: int, segments: int = 1
    ) -> LowRankTable:
        """Make the table of the adapters of one layer, with the best provider for its shape and dtype; see `HasLowRank`."""
        format_name = str(dtype).removeprefix("torch.")
        query = KernelQuery("low_rank", self.device, format_name, shape=shape)
        able = (provider for provider in self.providers if isinstance(provider, HasLowRank))
        best = next(provider for provider in able if not provider.supports(query))
        return best.low_rank(
            LowRankForm(shape, num_rows, dtype, max_rank, segments, self.memory or torch.device(self.device))
        )

    def provider_of(self, op: str) -> str:
        """Return the name of the provider that serves an operation."""
        return next(self._serving(op)).name

    def _serving(self, op: str) -> Iterator[Kernels]:
        """Yield the providers without a reason against the operation `op` on this device, best first."""
        query = KernelQuery(op, self.device)
        return (provider for provider in self.providers if not provider.supports(query))

    def _best_linear(self, query: KernelQuery, needed: frozenset[str] = frozenset()) -> Kernels:
        """Return the first provider that supports the query and has all features that the weight needs."""
        able = (provider for provider in self.providers if needed.issubset(features_of(provider)))
        return next(provider for provider in able if not provider.supports(query))


def weight_format(weight: CanonicalWeight) -> str:
    """Return the format name for kernel queries: `float32`, `bfloat16`, `int4_groups`, ..."""
    if isinstance(weight, Dense):
        return str(weight.weight.dtype).removeprefix("torch.")
    return weight.name
