"""Prepared weights that lie in host memory, and where kernels on the device read them.

Owns: the host's copy of each kernel's weight, and its place in the slots on the device. Never does: prepare a weight, choose
which ones lie in host memory (the configuration does), or copy one in a step (`LayerFetch` does).
Called by: the packing (each kernel once it is made), the part store (the next model), the model's instance.

A kernel is prepared on the device as any other, its weight goes to host memory at once, and its memory on the device is free
for the next one. Once all are there, the largest block decides how large a slot is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from core.api.errors import PluginError, UserError
from core_runtime.contracts import FetchesWeights, MovesWeights
from core_runtime.layers.experts import ReferenceExperts
from core_runtime.layers.heads import LinearHeads
from core_runtime.layers.linear import Linear
from core_runtime.models.layer_fetch import Copies, LayerFetch
from core_runtime.specs.weight_offload import OffloadConfig

ALIGNMENT: Final = 256
"""Bytes at whose multiples each tensor of a weight begins, as torch's own allocations on devices do at least."""


class HostMemory(Protocol):
    """An allocator of the host's memory that the device reads."""

    def take(self, nbytes: int) -> Tensor:
        """Return uint8 [nbytes]."""
        ...

    def give_back(self, memory: Tensor) -> None:
        """Release memory that is no longer in use."""
        ...


@dataclass(frozen=True, slots=True)
class Field:
    """One tensor of a weight in its part's bytes."""

    start: int
    shape: torch.Size
    dtype: torch.dtype

    def of(self, memory: Tensor) -> Tensor:
        """Return the tensor in uint8 memory of the part."""
        nbytes = math.prod(self.shape) * self.dtype.itemsize
        return memory[self.start : self.start + nbytes].view(self.dtype).view(self.shape)


@dataclass(frozen=True, slots=True)
class HostPart:
    """The weights of one part of a model in host memory.

    kernels: the part's kernels, with the fields of each.
    memory: uint8, all of them.
    """

    kernels: tuple[tuple[MovesWeights, tuple[Field, ...]], ...]
    memory: Tensor

    def use(self, memory: Tensor) -> None:
        """Let the kernels read other memory with the same layout."""
        for kernel, fields in self.kernels:
            kernel.use_weights([one.of(memory) for one in fields])


@dataclass(slots=True)
class Slots:
    """The memory on the device that blocks share, also those of later models.

    starts: place of each part in its block's slot. nbytes: of each part. memory: uint8, one a slot.
    """

    starts: dict[str, int] = field(default_factory=dict)
    nbytes: dict[str, int] = field(default_factory=dict)
    memory: list[Tensor] = field(default_factory=list)


class HostWeights:
    """The weights of one model in host memory, or of its successor (see `following`).

    runtime: the device. host: allocator of its host memory. allocate: allocates on the device.
    blocks: block of each part, in the model's order; see `block_of_each`.
    """

    def __init__(
        self,
        config: OffloadConfig,
        blocks: Mapping[str, int],
        runtime: FetchesWeights,
        host: HostMemory,
        allocate: Callable[[int], Tensor],
        before: HostWeights | None = None,
    ) -> None:
        self._config = config
        self._blocks = blocks
        self._runtime = runtime
        self._host = host
        self._allocate = allocate
        self._before = before
        self._slots: Slots = Slots() if before is None else before._slots
        self._parts: dict[str, HostPart] = {}
        self._new: set[str] = set()

    def following(self) -> HostWeights:
        """Return the weights of the model that replaces this one. Afterwards call `settle`, or `undo`."""
        return HostWeights(self._config, self._blocks, self._runtime, self._host, self._allocate, self)

    def holds(self, name: str) -> bool:
        """Whether the weights of a part lie in host memory."""
        return name in self._blocks

    @property
    def nbytes(self) -> int:
        """Bytes of these weights in host memory."""
        return sum(part.memory.nbytes for part in self._parts.values())

    @property
    def slot_nbytes(self) -> int:
        """Bytes of all slots on the device."""
        return sum(slot.nbytes for slot in self._slots.memory)

    def put(self, name: str, built: Any) -> None:
        """Move the weights of a part that was just built to host memory. Raises PluginError for a kernel that keeps them."""
        kernels = tuple(_kernels_of(built))
        for kernel in kernels:
            if not isinstance(kernel, MovesWeights):
                first, _, more = name.partition("+")
                named = f"{first} and those beside it" if more else first
                raise PluginError(
                    f"{named}: {type(kernel).__name__} keeps its weight on the device, expected a kernel with `use_weights`; "
                    "choose other --kernels, or leave --cpu-offload-gb and --offload-group-size out."
                )
        placed: list[tuple[MovesWeights, tuple[Field, ...]]] = []
        sources: list[tuple[Field, Tensor]] = []
        end = 0
        for kernel in kernels:
            fields = []
            for tensor in kernel.weights():
                one = Field(end, tensor.shape, tensor.dtype)
                fields.append(one)
                sources.append((one, tensor))
                end = _aligned(end + tensor.nbytes)
            placed.append((kernel, tuple(fields)))
        memory = self._host.take(max(end, ALIGNMENT))
        for one, tensor in sources:
            one.of(memory).copy_(tensor)
        part = HostPart(tuple(placed), memory)
        # No kernel runs before `finish`; until then the device's memory is free for the next part.
        part.use(memory)
        self._parts[name] = part
        self._new.add(name)

    def take_over(self, name: str) -> None:
        """Keep the weights of a part that the previous model has built."""
        assert self._before is not None, "only a successor takes parts over"
        self._parts[name] = self._before._parts[name]

    def finish(self) -> LayerFetch | None:
        """Let all kernels read their place on the device, or the host's memory in place, once the model is complete.

        Returns what copies weights in a step; None where they are read in place.
        Raises UserError where a newer weight does not fit its place.
        """
        if self._config.in_place:
            for name in self._new:
                self._parts[name].use(self._runtime.in_place(self._parts[name].memory))
            return None
        if not self._slots.memory:
            self._make_slots()
        by_block: dict[int, list[tuple[Tensor, Tensor]]] = {}
        order = {block: place for place, block in enumerate(sorted({self._blocks[name] for name in self._parts}))}
        for name in self._blocks:
            part = self._parts.get(name)
            if part is None:
                continue
            block = self._blocks[name]
            slot = self._slots.memory[order[block] % len(self._slots.memory)]
            nbytes = part.memory.nbytes
            if self._slots.nbytes.get(name) != nbytes:
                raise UserError(
                    f"The new weights of {name} have {nbytes} bytes, and their place on the device "
                    f"{self._slots.nbytes.get(name, 0)}; start the engine again with them."
                )
            start = self._slots.starts[name]
            target = slot[start : start + nbytes]
            if name in self._new:
                part.use(target)
            by_block.setdefault(block, []).append((target, part.memory))
        copies: Copies = dict(sorted(by_block.items()))
        return LayerFetch(self._runtime, copies, len(self._slots.memory))

    def settle(self) -> None:
        """Release what only the previous model used. It must not compute any more."""
        before, self._before = self._before, None
        if before is not None:
            for name, part in before._parts.items():
                if self._parts.get(name) is not part:
                    self._host.give_back(part.memory)
        self._new.clear()

    def undo(self) -> None:
        """Release what only this model used, which will not compute; the previous one stays in use."""
        for name in self._new:
            self._host.give_back(self._parts[name].memory)
        self._parts.clear()
        self._new.clear()

    def _make_slots(self) -> None:
        """Divide a slot among the parts of each block, and allocate as many as planned, or as there are blocks."""
        ends: dict[int, int] = {}
        for name in self._blocks:
            part = self._parts.get(name)
            if part is None:
                continue
            block = self._blocks[name]
            start = ends.get(block, 0)
            self._slots.starts[name] = start
            self._slots.nbytes[name] = part.memory.nbytes
            ends[block] = _aligned(start + part.memory.nbytes)
        size = max(ends.values(), default=0)
        count = min(self._config.slots, len(ends))
        self._slots.memory = [self._allocate(size) for _ in range(count)]


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _kernels_of(built: Any) -> Iterator[Any]:
    """Yield the kernels of a built part."""
    if isinstance(built, Linear | LinearHeads):
        for kernel in built.kernels:
            yield from _kernels_of(kernel)
    elif isinstance(built, ReferenceExperts):
        for linear in (*built.gate_up, *built.down):
            yield from _kernels_of(linear)
    elif isinstance(built, Sequence):
        for one in built:
            yield from _kernels_of(one)
    else:
        yield built
