"""Parts of a model whose tensors are still being read.

Owns: which tensors a part waits for, and what it becomes when all are there. Never does: read, pack or prepare.
Called by: the weight loading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from torch import Tensor

from core.api.decoder_spec import ExpertLinears
from core.api.specs import LayerSpec
from core.layers.linear import Linear
from core.models.packing import NO_PAIRS, Packing, Tensors
from core.plugin.contracts import ExpertsKernel, HasGroupedExperts
from core.weights.experts import ExpertsStack

T = TypeVar("T")


class Pending(Generic[T]):
    """One thing that is built as soon as its last tensor has arrived; what was read is then dropped.

    missing: names of the tensors that have not arrived.
    """

    def __init__(self, reads: set[str], build: Callable[[Tensors], T]) -> None:
        self.missing = set(reads)
        self._build = build
        self._tensors: dict[str, Tensor] = {}
        self._built: list[T] = []

    @property
    def built(self) -> T:
        """What it became; only when nothing is missing."""
        return self._built[0]

    def arrive(self, name: str, tensor: Tensor) -> None:
        """Take a tensor, which the loader may reuse afterwards."""
        self.missing.discard(name)
        if self.missing:
            self._tensors[name] = tensor.clone()
            return
        self._tensors[name] = tensor
        self._built.append(self._build(self._tensors))
        self._tensors = {}


class ExpertsOneByOne:
    """The experts of a layer, each prepared when it is complete: of one more than that is never in memory twice."""

    def __init__(self, packing: Packing, experts: Sequence[ExpertLinears], activation: str) -> None:
        self._kernels, self._activation = packing.kernels, activation
        self._gate_up = [pending_linear(packing, expert.gate_up) for expert in experts]
        self._down = [pending_linear(packing, expert.down) for expert in experts]

    @property
    def pending(self) -> list[Pending[Any]]:
        """Everything that waits for tensors."""
        return [*self._gate_up, *self._down]

    def build(self) -> ExpertsKernel:
        """The layer's kernel; only when nothing is missing."""
        gate_up = [pending.built for pending in self._gate_up]
        down = [pending.built for pending in self._down]
        return self._kernels.experts(gate_up, down, self._activation)


class ExpertsTogether:
    """The experts of a layer as one weight, with the experts as its leading axis; prepared when the last one is there.

    provider: takes that weight.
    """

    def __init__(
        self, packing: Packing, provider: HasGroupedExperts, experts: Sequence[ExpertLinears], activation: str
    ) -> None:
        self._packing, self._provider, self._activation = packing, provider, activation
        self._kernel: ExpertsKernel | None = None
        self._sides = []
        self.pending: list[Pending[Any]] = []
        for side in ("gate_up", "down"):
            rows = sum(part.shape[0] for part in getattr(experts[0], side))
            stack = ExpertsStack(len(experts), rows)
            self._sides.append(stack)
            for index, expert in enumerate(experts):
                self._expect(stack, index, getattr(expert, side))
        self._left = len(self.pending)

    def build(self) -> ExpertsKernel:
        """The layer's kernel; only when nothing is missing."""
        assert self._kernel is not None, "an expert is missing"
        return self._kernel

    def _expect(self, stack: ExpertsStack, index: int, parts: Sequence[LayerSpec]) -> None:
        first_row = 0
        for part in parts:
            put = partial(self._put, stack, index, first_row, part)
            self.pending.append(Pending(self._packing.reads([part]), put))
            first_row += part.shape[0]

    def _put(self, stack: ExpertsStack, index: int, first_row: int, part: LayerSpec, tensors: Tensors) -> None:
        packed = self._packing.pack(part, tensors)
        stack.put(index, first_row, packed.weight)
        self._left -= 1
        if self._left == 0:
            gate_up, down = (self._packing.moved(side.take()) for side in self._sides)
            gated = self._packing.kernels.gated
            self._kernel = self._provider.grouped_experts(
                gate_up, down, self._activation, precision=packed.activation, gated=gated
            )


def pending_experts(
    packing: Packing, experts: Sequence[ExpertLinears], activation: str
) -> ExpertsOneByOne | ExpertsTogether:
    """Together where a provider's kernel takes one weight and all experts have one format, else one by one."""
    queries = []
    for side in ([expert.gate_up for expert in experts], [expert.down for expert in experts]):
        parts = [part for expert in side for part in expert]
        forms = {packing.form(part) for part in parts}
        if len(forms) > 1 or any(part.bias for part in parts):
            return ExpertsOneByOne(packing, experts, activation)
        form, _, precision = forms.pop()
        rows = sum(part.shape[0] for part in side[0])
        queries.append(packing.kernels.experts_query(form, precision, (len(experts), rows, parts[0].shape[1])))
    alike = queries[0].activation == queries[1].activation
    provider = packing.kernels.grouping(queries) if alike else None
    if provider is None:
        return ExpertsOneByOne(packing, experts, activation)
    return ExpertsTogether(packing, provider, experts, activation)


def pending_linear(
    packing: Packing, parts: Sequence[LayerSpec], pairs: Mapping[str, tuple[int, int]] = NO_PAIRS
) -> Pending[Linear]:
    """A linear layer of some parts. pairs: see `Packing.linear`."""
    return Pending(packing.reads(parts), lambda tensors: packing.linear(parts, tensors, pairs))
