"""The stand-in's weights: given back, brought back, replaced, with the contract of the real reloader.

Owns: `SimReloader`, and where it takes time, fails and dies. Never does: schedule. Called by: the engine's lifecycle.

Staged sources that came from memory lie in a store that outlives the engine, as the file of kept tensors does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

from core.api.config import EngineConfig
from core.api.errors import CheckpointError, EngineDeadError
from core.api.weights import MemoryPart, WeightSource, WeightsState, WeightUpdate
from tests.simulation.weights import Weights

if TYPE_CHECKING:
    from tests.simulation.executor import SimExecutor

PARTS: frozenset[MemoryPart] = frozenset(get_args(MemoryPart))


class SimReloader:
    """state: of the weights. missing: parts that were given back."""

    def __init__(self, executor: SimExecutor, config: EngineConfig) -> None:
        self.state = config.weights
        self.missing: frozenset[MemoryPart] = frozenset()
        self._executor = executor
        self._process = executor.process
        self._store = executor.world.kept_tensors
        self._process.point("start")
        self._check(self.state.sources)
        executor.world.weights.become(Weights.of(self.state.sources), starts=True)
        executor.use(Weights.of(self.state.sources))
        executor.allocate()

    def release(self, level: int) -> None:
        self._work("release")
        self._drop()
        self._process.point("released")

    def restore(self, parts: Sequence[MemoryPart]) -> None:
        wanted = self.missing & frozenset(parts)
        if wanted:
            self._work("restore")
        self._bring_back(wanted)
        self._process.point("restored")

    def stage(self, update: WeightUpdate) -> WeightSource:
        self._process.point("stage")
        if update.shared_memory:
            self._store.add(update.shared_memory)
        names = tuple(update.names or ("all",))
        self._process.point("staged")
        return WeightSource(path=update.path or "", digest=update.shared_memory or "", names=names)

    def settle(self, staged: Sequence[WeightSource]) -> None:
        self._process.point("settle")
        needed = {source.digest for source in (*self.state.sources, *staged)}
        for name in [name for name in self._store if name not in needed]:
            self._store.discard(name)

    def discard(self, source: WeightSource) -> None:
        """Its memory is given back by `settle`."""
        self._process.point("discard")

    def apply(self, sources: Sequence[WeightSource], version: str | None, *, frees_first: bool = False) -> None:
        number = self.state.number + 1
        together = _compacted([*self.state.sources, *sources])
        state = WeightsState(version=version or str(number), number=number, sources=together)
        if frees_first and "weights" not in self.missing:
            self._exchange(state)
        else:
            self._work("apply")
            self._use(state)
        self._process.point("applied")

    def reload(self) -> None:
        self._work("reload")
        self._use(self.state)

    def _exchange(self, state: WeightsState) -> None:
        before = self.state
        there = PARTS - self.missing
        self._drop()
        self.state = state
        try:
            self._work("exchange")
            self._bring_back(self.missing & there)
        except Exception:
            self.state = before
            try:
                self._work("exchange_back")
                self._bring_back(self.missing & there)
            except Exception as error:
                raise EngineDeadError(f"Neither the new weights nor those before can be used: {error}") from error
            raise

    def _use(self, state: WeightsState) -> None:
        self._check(state.sources)
        self.state = state
        weights = Weights.of(state.sources)
        self._executor.world.weights.become(weights)
        if "weights" not in self.missing:
            self._executor.use(weights)

    def _drop(self) -> None:
        self._executor.free()
        self.missing = PARTS

    def _bring_back(self, wanted: frozenset[MemoryPart]) -> None:
        left = self.missing - wanted
        if "weights" in wanted:
            self._check(self.state.sources)
            weights = Weights.of(self.state.sources)
            self._executor.world.weights.become(weights)
            self._executor.use(weights)
        if not left & PARTS and not self._executor.cache:
            self._executor.allocate()
        self.missing = left

    def _check(self, sources: Sequence[WeightSource]) -> None:
        for source in sources:
            if source.digest and source.digest not in self._store:
                self._executor.world.violated("tensors", f"{source.digest} is needed, and its memory was given back")
                raise CheckpointError(f"The tensors of {source.digest} are gone.")

    def _work(self, what: str) -> None:
        """Something that takes time, and may fail before it has changed anything."""
        process = self._process
        process.point(what)
        process.spend(process.world.duration(what))
        process.point(f"{what}.late")


def _compacted(sources: Sequence[WeightSource]) -> tuple[WeightSource, ...]:
    """Sources without those that later ones replace."""
    kept: list[WeightSource] = []
    covered: set[str] = set()
    for source in reversed(sources):
        if not (covered.issuperset(source.names) or "all" in covered):
            kept.insert(0, source)
            covered.update(source.names)
    return tuple(kept)
