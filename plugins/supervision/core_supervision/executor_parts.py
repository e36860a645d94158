"""The optional parts of an executor that supervision asks for.

Owns: the contracts of executors that prepare grammars, sleep, or take new weights. Never does: compute. Called by: the gate of
grammars, the lifecycle; executors implement them, without a base class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from core.api.structured_outputs import CompiledGrammar
from core.api.weights import MemoryPart, WeightSource, WeightsState, WeightUpdate
from core.engine.executor import Executor


@runtime_checkable
class PreparingExecutor(Executor, Protocol):
    """An executor that prepares grammars while it computes steps. Otherwise a sequence's first step prepares its grammar."""

    def is_prepared(self, grammar: CompiledGrammar) -> bool:
        """Whether a step would use this grammar without delay. Returns at once, and raises nothing."""
        ...

    def prepare(self, grammar: CompiledGrammar) -> None:
        """Import, read and keep whatever the grammar needs.

        Called while steps are computed, from another thread than theirs, for one grammar at a time.

        An exception ends the sequences with this grammar.
        """
        ...


class Reloader(Protocol):
    """Releases memory and replaces weights. Called by the thread that computes steps, between two of them.

    state:   sources and version of the weights.
    missing: parts of the memory that are released at present; right also after a call that failed.
    """

    state: WeightsState

    @property
    def missing(self) -> frozenset[MemoryPart]:
        """Parts of the memory that are released at present."""
        ...

    def release(self, level: int) -> None:
        """Release weights and cache, completely or not at all. Raises UserError, OSError.

        level: 1 writes prepared weights to a file first.
        """
        ...

    def restore(self, parts: Sequence[MemoryPart]) -> None:
        """Restore parts. Raises UserError when that fails; parts restored by then stay."""
        ...

    def stage(self, update: WeightUpdate) -> WeightSource:
        """Check an update, and copy the tensors that cannot be read again. Raises UserError, OSError."""
        ...

    def discard(self, source: WeightSource) -> None:
        """Drop a staged source, unless the weights in use come from it."""
        ...

    def settle(self, staged: Sequence[WeightSource]) -> None:
        """Free the memory of kept tensors that neither the weights in use nor `staged` need."""
        ...

    def apply(self, sources: Sequence[WeightSource], version: str | None, *, frees_first: bool = False) -> None:
        """Use staged updates, all or none; later plans name no sequence of an earlier plan. Raises UserError.

        Tensors that newer ones replace are kept until `settle`: the next engine may have to read them.
        frees_first: whether the weights and the cache in use are released before others are read. Raises EngineDeadError when
                     neither the new ones nor the old ones can be read then.
        """
        ...

    def reload(self) -> None:
        """Read all weights again, as their files are now. Raises UserError."""
        ...


@runtime_checkable
class ReloadingExecutor(Executor, Protocol):
    """An executor that supports sleep and new weights."""

    reloader: Reloader
