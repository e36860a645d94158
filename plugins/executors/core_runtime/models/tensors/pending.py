"""Parts of a model whose tensors are still being read.

Owns: the tensors that a part waits for, and what is built from them once all have arrived. Never does: read, pack or
prepare.
Called by: the weight loading.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from core.api.specs import KernelQuery, LatentSpec, LayerSpec, PartPlan
from core_runtime.contracts import ExpertsKernel, HasGroupedExperts, HeadsKernel, LinearKernel
from core_runtime.layers.experts import COMBINE_RANGES
from core_runtime.layers.heads import LinearHeads
from core_runtime.layers.linear import Linear
from core_runtime.models.mlp import SeparateExperts
from core_runtime.models.tensors.packing import NO_ORDERS, Orders, Packing, Tensors
from core_runtime.specs.block_parts import ExpertLinears
from core_runtime.weights.experts import ExpertsStack

T = TypeVar("T")
Halves = tuple[HeadsKernel, HeadsKernel]
"""Projections from queries to latents, and from latents to values."""


class Pending(Generic[T]):
    """An object that is built as soon as its last tensor has arrived. Its tensors are then dropped.

    missing: names of the tensors that have not arrived.
    """

    def __init__(self, reads: set[str], build: Callable[[Tensors], T]) -> None:
        self.missing = set(reads)
        self._build = build
        self._tensors: dict[str, Tensor] = {}
        self._built: list[T] = []

    @classmethod
    def ready(cls, built: T) -> Pending[T]:
        """Return a `Pending` that is already built."""
        pending = cls(set(), lambda tensors: built)
        pending._built.append(built)
        return pending

    @property
    def built(self) -> T:
        """Return the built object. Only valid when nothing is missing."""
        return self._built[0]

    def arrive(self, name: str, tensor: Tensor, *, keeps: bool = False) -> None:
        """Accept a tensor. keeps: the loader does not reuse its memory; otherwise all but the last one are copied."""
        self.missing.discard(name)
        if self.missing:
            self._tensors[name] = tensor if keeps else tensor.clone()
            return
        # The last tensor needs no copy: the part is built before the loader continues.
        self._tensors[name] = tensor
        self._built.append(self._build(self._tensors))
        self._tensors = {}


class ExpertsOneByOne:
    """The experts of a layer, each prepared when it is complete: only one at a time is in memory twice.

    weight_inputs: see `ExpertsSpec`.
    """

    def __init__(
        self, packing: Packing, experts: Sequence[ExpertLinears], activation: str, *, weight_inputs: bool = False
    ) -> None:
        self._packing = packing
        self._activation = activation
        self._weight_inputs = weight_inputs
        self._gate_up = [pending_linear(packing, expert.gate_up) for expert in experts]
        self._down = [pending_linear(packing, expert.down) for expert in experts]

    @property
    def pending(self) -> list[Pending[Any]]:
        """Return all parts that wait for tensors."""
        return [*self._gate_up, *self._down]

    @property
    def separate(self) -> SeparateExperts:
        """The layers of each expert. Only valid when nothing is missing."""
        gate_up = [pending.built for pending in self._gate_up]
        down = [pending.built for pending in self._down]
        return SeparateExperts(gate_up, down, self._activation, self._weight_inputs)

    def build(self) -> ExpertsKernel:
        """Return the layer's kernel. Only valid when nothing is missing."""
        experts = self.separate
        return self._packing.kernels.experts(
            experts.gate_up,
            experts.down,
            self._activation,
            weight_inputs=self._weight_inputs,
            max_ranges=_max_ranges(self._packing),
        )


class ExpertsTogether:
    """The experts of a layer as one weight, with the experts as its leading axis. Prepared when the last expert has
    arrived.

    provider: kernel provider that takes this weight.
    separate: None, since no expert is a layer of its own.
    """

    separate: None = None

    def __init__(
        self, packing: Packing, provider: HasGroupedExperts, experts: Sequence[ExpertLinears], activation: str
    ) -> None:
        self._packing = packing
        self._provider = provider
        self._activation = activation
        self._parts = [part for expert in experts for part in (*expert.gate_up, *expert.down)]
        self._kernel: ExpertsKernel | None = packing.taken_over(self._parts)
        self.pending: list[Pending[Any]] = []
        self._biases: dict[ExpertsStack, Tensor] = {}
        if self._kernel is not None:
            return
        self._gate_up = self._side([expert.gate_up for expert in experts])
        self._down = self._side([expert.down for expert in experts])
        self._left = len(self.pending)

    def build(self) -> ExpertsKernel:
        """Return the layer's kernel. Only valid when nothing is missing."""
        assert self._kernel is not None, "an expert is missing"
        return self._kernel

    def _side(self, experts: Sequence[Sequence[LayerSpec]]) -> ExpertsStack:
        """Return a stack for one side of each expert, and the parts that wait for their place in it."""
        rows = sum(part.shape[0] for part in experts[0])
        stack = ExpertsStack(len(experts), rows)
        if any(part.bias for part in self._parts):
            packing = self._packing
            room = torch.zeros(len(experts), rows, dtype=packing.activation_dtype, device=packing.device)
            self._biases[stack] = room
        for index, parts in enumerate(experts):
            first_row = 0
            for part in parts:
                reads = self._packing.reads([part])
                put = partial(self._put, stack, index, first_row, part)
                self.pending.append(Pending(reads, put))
                first_row += part.shape[0]
        return stack

    def _put(self, stack: ExpertsStack, index: int, first_row: int, part: LayerSpec, tensors: Tensors) -> None:
        """Write a part to its place. The last part of the layer triggers the building of the kernel."""
        packed = self._packing.pack(part, tensors)
        stack.put(index, first_row, packed.weight)
        bias = self._packing.bias([part], tensors)
        if bias is not None:
            self._biases[stack][index, first_row : first_row + len(bias)] = bias
        self._left -= 1
        if self._left > 0:
            return
        gate_up = self._packing.moved(self._gate_up.take())
        down = self._packing.moved(self._down.take())
        gated = self._packing.kernels.gated
        options: dict[str, Any] = {"biases": tuple(self._biases.values())} if self._biases else {}
        if self._packing.part.size > 1:
            if "max_ranges" in inspect.signature(self._provider.grouped_experts).parameters:
                options["max_ranges"] = _max_ranges(self._packing)
            else:
                self._packing.unordered.update(part.name for part in self._parts)
        self._kernel = self._provider.grouped_experts(
            gate_up, down, self._activation, precision=packed.activation, gated=gated, **options
        )
        self._biases = {}
        self._packing.keep(self._parts, self._kernel)


def _max_ranges(packing: Packing) -> int:
    """Return a rank's share of the ranges of experts with sums of their own, as of the segments of a divided layer."""
    return max(COMBINE_RANGES // packing.part.size, 1)


def pending_experts(
    packing: Packing, experts: Sequence[ExpertLinears], activation: str, *, weight_inputs: bool = False
) -> ExpertsOneByOne | ExpertsTogether:
    """Return the experts together, if a provider's kernel takes one weight and all experts have one format, else one by
    one.

    weight_inputs: see `ExpertsSpec`.
    """
    # kernels of one weight support neither weighted inputs nor experts without a gate
    is_usual = not weight_inputs and len(experts[0].gate_up) > 1
    provider = _grouping(packing, experts) if is_usual else None
    if provider is None:
        return ExpertsOneByOne(packing, experts, activation, weight_inputs=weight_inputs)
    return ExpertsTogether(packing, provider, experts, activation)


def _grouping(packing: Packing, experts: Sequence[ExpertLinears]) -> HasGroupedExperts | None:
    """Return the provider that takes both sides of all experts as one weight each, or None."""
    gate_up = _side_query(packing, [expert.gate_up for expert in experts])
    down = _side_query(packing, [expert.down for expert in experts])
    if gate_up is None or down is None or gate_up.activation != down.activation:
        return None
    provider = packing.kernels.grouping([gate_up, down])
    biased = any(part.bias for expert in experts for part in (*expert.gate_up, *expert.down))
    if provider is None or (biased and "biases" not in inspect.signature(provider.grouped_experts).parameters):
        return None
    return provider


def _side_query(packing: Packing, side: Sequence[Sequence[LayerSpec]]) -> KernelQuery | None:
    """Return a provider's query for one side of all experts; None where they cannot be one weight."""
    parts = [part for expert in side for part in expert]
    forms = {packing.form(part) for part in parts}
    apart = any(_may_be_ordered(packing, part) for part in parts)
    if len(forms) > 1 or apart:
        return None
    form, _, precision = forms.pop()
    rows = sum(part.shape[0] for part in side[0])
    inputs = parts[0].shape[1]
    return packing.kernels.experts_query(form, precision, (len(side), rows, inputs))


def _may_be_ordered(packing: Packing, part: LayerSpec) -> bool:
    """Whether its weight may have an order of inputs that the weights of other experts do not share."""
    plan = packing.plan(part)
    return isinstance(plan, PartPlan) and plan.ordered


def pending_linear(packing: Packing, parts: Sequence[LayerSpec], orders: Orders = NO_ORDERS) -> Pending[Linear]:
    """Return a pending linear layer of some parts. orders: see `Packing.linear`."""
    return _pending(packing, parts, lambda tensors: packing.linear(parts, tensors, orders), Linear)


def pending_matrix(packing: Packing, part: LayerSpec) -> Pending[LinearKernel]:
    """Return the pending kernel of a part that stands alone: the embedding, the head."""
    return _pending(packing, [part], lambda tensors: packing.matrix(part, tensors), lambda kernels: kernels[0])


def pending_halves(packing: Packing, part: LayerSpec, mixer: LatentSpec) -> Pending[Halves]:
    """Return both halves of the up-projection of a latent, pending."""

    def of_kernels(kernels: Sequence[LinearKernel]) -> Halves:
        heads = mixer.num_heads
        return LinearHeads(kernels[:heads]), LinearHeads(kernels[heads:])

    return _pending(packing, [part], lambda tensors: packing.halves(part, mixer, tensors), of_kernels)


def _pending(
    packing: Packing,
    parts: Sequence[LayerSpec],
    of_tensors: Callable[[Tensors], T],
    of_kernels: Callable[[Sequence[LinearKernel]], T],
) -> Pending[T]:
    """Return the pending result of these parts: taken over from the previous model, or restored from saved kernels, or
    built from tensors.
    """
    known = packing.taken_over(parts)
    if known is not None:
        return Pending.ready(known)
    restored = packing.restored(parts)
    if restored is not None:
        made = of_kernels(restored)
        packing.keep(parts, made)
        return Pending.ready(made)

    def build(tensors: Tensors) -> T:
        built = of_tensors(tensors)
        packing.keep(parts, built)
        return built

    return Pending(packing.reads(parts), build)
