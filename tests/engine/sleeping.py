"""A fake executor that sleeps and takes new weights: it notes what is asked of it, and refuses steps while it sleeps."""

import time
from collections.abc import Sequence
from pathlib import Path

from engine.fakes import FakeExecutor

from core.api.config import EngineConfig
from core.api.errors import EngineDeadError
from core.api.step_plan import StepPlan, StepResult
from core.api.weights import MemoryPart, WeightSource, WeightsState, WeightUpdate
from core_supervision.engine_state import PARTS


class FakeReloader:
    """Notes what is asked of it."""

    def __init__(self, config: EngineConfig) -> None:
        self.state = config.weights
        self.missing: frozenset[MemoryPart] = frozenset()
        self.staged: list[str] = []
        self.calls: list[str] = []
        self.failure: Exception | None = None

    def release(self, level: int) -> None:
        self._note(f"release {level}")
        self.missing = frozenset(PARTS)

    def restore(self, parts: Sequence[MemoryPart]) -> None:
        self._note("restore " + ",".join(parts))
        self.missing -= set(parts)

    def stage(self, update: WeightUpdate) -> WeightSource:
        self._note(f"stage {update.path}")
        return WeightSource(path=update.path or "", names=("a",))

    def discard(self, source: WeightSource) -> None:
        self.calls.append(f"discard {source.path}")

    def settle(self, staged: Sequence[WeightSource]) -> None:
        self.staged = [source.path for source in staged]

    def apply(self, sources: Sequence[WeightSource], version: str | None, *, frees_first: bool = False) -> None:
        self._note("apply " + ",".join(source.path for source in sources))
        number = self.state.number + 1
        self.state = WeightsState(version=version or str(number), number=number, sources=tuple(sources))

    def reload(self) -> None:
        self._note("reload")

    @property
    def present(self) -> bool:
        """Whether a step could be computed."""
        return not self.missing

    def _note(self, call: str) -> None:
        if self.failure is not None:
            raise self.failure
        self.calls.append(call)


class GatedReloader(FakeReloader):
    """Gives memory back once a file is there, and loses all weights when they are to go first."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._gate = Path(config.plugins.arguments["executor.fake"]["gate"])

    def release(self, level: int) -> None:
        while not self._gate.exists():
            time.sleep(0.005)
        super().release(level)

    def apply(self, sources: Sequence[WeightSource], version: str | None, *, frees_first: bool = False) -> None:
        if frees_first:
            self.missing = frozenset(PARTS)
            raise EngineDeadError("Neither the new weights nor those before can be used.")
        super().apply(sources, version)


class SleepingExecutor(FakeExecutor):
    """Refuses steps while it sleeps."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.reloader = FakeReloader(config)

    def execute(self, plan: StepPlan) -> StepResult:
        assert self.reloader.present, "a step came while the engine slept"
        return super().execute(plan)


class GatedExecutor(SleepingExecutor):
    """Takes as long for its sleep as a test wants."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.reloader = GatedReloader(config)
