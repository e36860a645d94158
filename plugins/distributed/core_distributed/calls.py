"""Calls besides steps, which reach all ranks or none: sleep and waking, and the places of adapters.

Owns: `Call`; `Outcome`, what a rank says after one; `RanksReloader`, which calls all ranks.
Never does: send (the executor does). Called by: the executor, the other ranks, and the engine's lifecycle (through the
executor's `reloader`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from core.api.adapters import AdapterSource
from core.api.errors import CoreError, EngineDeadError, UserError
from core.api.weights import MemoryPart, WeightSource, WeightsState, WeightUpdate
from core_runtime.executor.reloading.reloader import PARTS, Reloader


class Call(msgspec.Struct, frozen=True):
    """One call.

    name: `release` with `level`, `restore` with `parts`, `place` and `drop` with the digest and source of an adapter.
    """

    name: str
    level: int = 0
    parts: list[MemoryPart] = []
    digest: str = ""
    source: AdapterSource = AdapterSource("", "")


class Outcome(msgspec.Struct, frozen=True):
    """What a rank says after a call.

    error: why it failed; empty: it has not.
    missing: parts of the memory that are released.
    """

    error: str = ""
    missing: list[MemoryPart] = []


class PlacesAdapters(Protocol):
    """The adapters of one rank, for its calls."""

    def place(self, digest: str, source: AdapterSource) -> None:
        """Let steps use an adapter. Raises UserError, OSError."""
        ...

    def drop(self, digest: str, source: AdapterSource) -> None:
        """Forget an adapter that no sequence uses."""
        ...


def perform(reloader: Reloader, adapters: PlacesAdapters, call: Call) -> Outcome:
    """Carry out a call on one rank."""
    error = ""
    try:
        if call.name == "release":
            reloader.release(call.level)
        elif call.name == "restore":
            reloader.restore(call.parts)
        elif call.name == "place":
            adapters.place(call.digest, call.source)
        else:
            adapters.drop(call.digest, call.source)
    except Exception as raised:
        error = str(raised) if isinstance(raised, CoreError) else f"{type(raised).__name__}: {raised}"
    return Outcome(error[:2000], sorted(reloader.missing))


def failure_of(outcomes: Sequence[Outcome]) -> str:
    """Return what the first rank that failed says, or an empty string."""
    return next((f"rank {rank}: {outcome.error}" for rank, outcome in enumerate(outcomes) if outcome.error), "")


class RanksReloader:
    """Releases and restores the memory of all ranks. The executor owns it.

    own: reloader of rank 0.
    ask: carries a call out on all ranks; returns the outcome of each.
    """

    def __init__(self, own: Reloader, ask: Callable[[Call], Sequence[Outcome]]) -> None:
        self._own = own
        self._ask = ask
        self._missing: frozenset[MemoryPart] = frozenset()

    @property
    def state(self) -> WeightsState:
        """Sources and version of the weights."""
        return self._own.state

    @property
    def missing(self) -> frozenset[MemoryPart]:
        """Parts of the memory that are released on some rank."""
        return self._missing

    def release(self, level: int) -> None:
        """Release weights, cache and device on all ranks, or on none.

        Raises UserError; EngineDeadError when a rank can neither sleep nor wake.
        """
        failure = self._all(Call("release", level=level))
        if not failure:
            return
        # Ranks that succeeded are woken, so that all of them are as they were.
        second = self._all(Call("restore", parts=sorted(PARTS)))
        if second:
            raise EngineDeadError(f"{failure}; then {second}")
        raise UserError(failure)

    def restore(self, parts: Sequence[MemoryPart]) -> None:
        """Restore parts on all ranks. Raises UserError when one fails; those restored by then stay."""
        failure = self._all(Call("restore", parts=list(parts)))
        if failure:
            raise UserError(failure)

    def stage(self, update: WeightUpdate) -> WeightSource:
        """Refuse an update."""
        raise _refused("weight updates")

    def discard(self, source: WeightSource) -> None:
        """Do nothing: nothing is ever staged."""

    def settle(self, staged: Sequence[WeightSource]) -> None:
        """Do nothing: no tensors are kept."""

    def apply(self, sources: Sequence[WeightSource], version: str | None, *, frees_first: bool = False) -> None:
        """Refuse new weights."""
        raise _refused("weight updates")

    def reload(self) -> None:
        """Refuse to read weights again."""
        raise _refused("reading weights again")

    def _all(self, call: Call) -> str:
        """Carry out a call everywhere; returns what the first rank that failed says, or an empty string."""
        outcomes = self._ask(call)
        self._missing = frozenset[Any]().union(*(outcome.missing for outcome in outcomes))
        return failure_of(outcomes)


def _refused(what: str) -> UserError:
    return UserError(f"With several ranks there are no {what} yet; start the engine again instead.")
