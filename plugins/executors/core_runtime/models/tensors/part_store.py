"""A store of a model's built parts, from which the next model takes over the parts whose tensors have not changed.

Owns: the record of the tensors that each part was made of, and the memory of each part. Never does: read, pack or
prepare, or know which tensors are newer. Called by: the packing (looks up parts, stores new ones), the reloader
(creates the next model's store).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from core.api.specs import DensePlan, PartPlan
from core_runtime.models.tensors.host_weights import HostWeights


class Memory(Protocol):
    """An allocator for prepared weights."""

    def take(self, nbytes: int) -> Tensor:
        """Return memory for prepared weights, uint8 [nbytes]."""
        ...

    def give_back(self, memory: Tensor) -> None:
        """Release memory that is no longer in use."""
        ...

    def stay_with(self, kept: Iterable[Tensor]) -> None:
        """Announce that everything except `kept` will be released soon. Later allocations must not prevent its
        release.
        """
        ...

    def end_stay(self) -> None:
        """End the effect of `stay_with`."""
        ...


@dataclass(frozen=True, slots=True)
class Origin:
    """The facts that determine a part, apart from the bytes of its tensors.

    reads: names of its tensors.
    plans: how each layer of the part is stored.
    """

    reads: frozenset[str]
    plans: tuple[PartPlan | DensePlan, ...]


@dataclass(frozen=True, slots=True)
class BuiltPart:
    """A part as it was built.

    built: the kernel, or an object made of kernels.
    places: memory that was allocated for it.
    """

    origin: Origin
    built: Any
    places: tuple[Tensor, ...]


class PartStore:
    """The parts of one model, or of its successor (see `following`).

    memory: allocator for the prepared weights of both models.
    host: the weights that lie in host memory; None: all are on the device.
    taken_over: names of the parts that come from the previous model.
    """

    def __init__(self, memory: Memory, host: HostWeights | None = None) -> None:
        self.taken_over: set[str] = set()
        self.host = host
        self._memory = memory
        self._parts: dict[str, BuiltPart] = {}
        self._before: Mapping[str, BuiltPart] = {}
        self._changed: Set[str] | None = None
        self._loose: list[Tensor] = []  # memory of the part that is being built
        self._stays = False

    def following(self, changed: Set[str] | None) -> PartStore:
        """Return a store for the model that replaces this one. Afterwards call `settle`, or `undo`.

        changed: tensors that may have changed; None: all of them.
        """
        store = PartStore(self._memory, None if self.host is None else self.host.following())
        store._before = self._parts
        store._changed = changed
        return store

    def is_new(self, names: Iterable[str]) -> bool:
        """Whether any of these tensors may differ from the previous model's, or there was no previous model."""
        return self._changed is None or not self._changed.isdisjoint(names)

    def room(self, nbytes: int) -> Tensor:
        """Return uint8 [nbytes] for the part that the next call of `keep` stores."""
        if self._before and not self._stays:
            self._stays = True
            self._memory.stay_with(place for name in self.taken_over for place in self._parts[name].places)
        memory = self._memory.take(nbytes)
        self._loose.append(memory)
        return memory

    def find(self, name: str, origin: Origin) -> Any | None:
        """Return a part of the previous model, if building it again would give the same result; None otherwise."""
        known = self._before.get(name)
        # The same tensors are not enough: they may be packed or prepared in another way now.
        if known is None or known.origin != origin or self.is_new(origin.reads):
            return None
        self._parts[name] = known
        self.taken_over.add(name)
        if self.host is not None and self.host.holds(name):
            self.host.take_over(name)
        return known.built

    def keep(self, name: str, origin: Origin, built: Any) -> None:
        """Store a part that was built, with the memory allocated since the last call.

        Raises PluginError where its weights belong into host memory and its kernel keeps them on the device.
        """
        if self.host is not None and self.host.holds(name):
            self.host.put(name, built)
            self._give_back(self._loose)
            self._loose = []
        self._parts[name] = BuiltPart(origin, built, tuple(self._loose))
        self._loose.clear()

    def settle(self) -> None:
        """Release the memory of parts that were not taken over. The previous model must not compute any more."""
        for name, part in self._before.items():
            if name not in self.taken_over:
                self._give_back(part.places)
        self._before = {}
        self._memory.end_stay()
        if self.host is not None:
            self.host.settle()

    def undo(self) -> None:
        """Discard this model, which will not compute; the previous one stays in use."""
        self._give_back(self._loose)
        for name, part in self._parts.items():
            if name not in self.taken_over:
                self._give_back(part.places)
        self._loose = []
        self._parts = {}
        self._memory.end_stay()
        if self.host is not None:
            self.host.undo()

    def _give_back(self, places: Iterable[Tensor]) -> None:
        for place in places:
            self._memory.give_back(place)
