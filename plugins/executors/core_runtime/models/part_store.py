"""The parts of a model as they were built, so that the model which follows it takes over those whose tensors have not changed.

Owns: what each part was made of, and the places in memory that it takes. Never does: read, pack or prepare, or know which
tensors are newer. Called by: the packing (asks for parts, keeps new ones), the reloader (has one follow another).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from core.api.specs import DensePlan, PartPlan


class Memory(Protocol):
    """Gives memory for prepared weights."""

    def take(self, nbytes: int) -> Tensor:
        """uint8 [nbytes]."""
        ...

    def give_back(self, memory: Tensor) -> None:
        """Nobody uses it any more."""
        ...

    def stay_with(self, kept: Iterable[Tensor]) -> None:
        """Everything but these will be given back: take nothing that would keep it from going."""
        ...

    def end_stay(self) -> None:
        """That is no longer so."""
        ...


@dataclass(frozen=True, slots=True)
class Origin:
    """What decides what a part becomes, besides the bytes of its tensors.

    reads: names of its tensors. plans: how each of the layers in it is held.
    """

    reads: frozenset[str]
    plans: tuple[PartPlan | DensePlan, ...]


@dataclass(frozen=True, slots=True)
class BuiltPart:
    """built: the kernel, or what consists of kernels. places: memory that was taken for it."""

    origin: Origin
    built: Any
    places: tuple[Tensor, ...]


class PartStore:
    """Of one model, or of its successor: see `following`.

    memory: where prepared weights of both lie.
    taken_over: names of the parts that are those of the model before.
    """

    def __init__(self, memory: Memory) -> None:
        self.taken_over: set[str] = set()
        self._memory = memory
        self._parts: dict[str, BuiltPart] = {}
        self._before: Mapping[str, BuiltPart] = {}
        self._changed: Set[str] | None = None
        self._loose: list[Tensor] = []  # places of the part that is being built
        self._stays = False

    def following(self, changed: Set[str] | None) -> PartStore:
        """For the model that takes the place of this one's; then call `settle`, or `undo`.

        changed: tensors that may not be as they were; None: all of them.
        """
        store = PartStore(self._memory)
        store._before = self._parts
        store._changed = changed
        return store

    def is_new(self, names: Iterable[str]) -> bool:
        """Whether the model before may have had another of these tensors, or there was none."""
        return self._changed is None or not self._changed.isdisjoint(names)

    def room(self, nbytes: int) -> Tensor:
        """uint8 [nbytes] for the part that `keep` is called with next."""
        if self._before and not self._stays:
            self._stays = True
            self._memory.stay_with(place for name in self.taken_over for place in self._parts[name].places)
        memory = self._memory.take(nbytes)
        self._loose.append(memory)
        return memory

    def find(self, name: str, origin: Origin) -> Any | None:
        """The part of the model before, where it would be built the same once more."""
        known = self._before.get(name)
        if known is None or known.origin != origin or self.is_new(origin.reads):
            return None
        self._parts[name] = known
        self.taken_over.add(name)
        return known.built

    def keep(self, name: str, origin: Origin, built: Any) -> None:
        """A part was built."""
        self._parts[name] = BuiltPart(origin, built, tuple(self._loose))
        self._loose.clear()

    def settle(self) -> None:
        """The model before computes no more: memory of parts that were not taken over may be taken again."""
        for name, part in self._before.items():
            if name not in self.taken_over:
                self._give_back(part.places)
        self._before = {}
        self._memory.end_stay()

    def undo(self) -> None:
        """This model will not compute; the one before goes on."""
        self._give_back(self._loose)
        for name, part in self._parts.items():
            if name not in self.taken_over:
                self._give_back(part.places)
        self._loose = []
        self._parts = {}
        self._memory.end_stay()

    def _give_back(self, places: Iterable[Tensor]) -> None:
        for place in places:
            self._memory.give_back(place)
