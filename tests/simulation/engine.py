"""The engine process: the product's own `serve`, run inside the simulated loop.

Owns: `SimEngineProcess`, which its owner sees as it sees a real one, and its deaths. Never does: schedule, or decide when to
die (the world's faults do). Called by: the owner's source of engines.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core.api.errors import EngineDeadError
from core.engine import process as engine_process
from core_supervision.death import Death, death_of, how_ended
from core_supervision.watch import breadcrumbs
from core_supervision.watch.breadcrumbs import LastStep
from tests.simulation.executor import SimExecutor
from tests.simulation.loop import Died, Process
from tests.simulation.network import Router

if TYPE_CHECKING:
    from tests.simulation.world import World

STEPS, RECORD, TENSORS, WEIGHTS = 1_000_000, 1_000_001, 1_000_002, 1_000_003
"""Descriptors of the files that engines inherit."""

KILLED, ABORTED = -9, -6


@dataclass(frozen=True, slots=True)
class SimFiles:
    """As `SharedFiles`."""

    steps: int = STEPS
    weights: int = WEIGHTS
    lasting: int = RECORD
    tensors: int = TENSORS


class SimEngineProcess(Process):
    """One life of the engine. Its public part is that of `EngineProcess`."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(f"engine {number}")
        self.world = world
        self.number = number
        self.address = f"sim://{number}"
        self.pid = number
        self.files: SimFiles | None = SimFiles()
        self.configured = asyncio.Event()
        self.wedge: str | None = None
        self.hangs = False
        self._returncode: int | None = None
        self._ended: asyncio.Future[None] = world.loop.create_future()
        self._last_step: LastStep | None = None
        self._router = Router(world.network, self, self.address)
        world.loop.start(self, self._run)

    def point(self, name: str) -> None:
        """A place at which it may die, or a call may fail."""
        if not self.alive:
            raise Died
        self.world.faults.pass_by(self, name)

    def spend(self, seconds: float) -> None:
        """Work for so long while the others go on."""
        loop = self.world.loop
        loop.block(self, bool, loop.now + seconds)

    def hang(self) -> None:
        """Do nothing for ever."""
        self.hangs = True
        self.world.loop.block(self, lambda: False, self.world.loop.now + 1e6)

    def die(self, returncode: int = KILLED) -> None:
        """At once; harmless when it has ended."""
        if not self.alive:
            return
        self.last_step()
        self.alive = False
        self._returncode = returncode
        self._router.die()
        self.world.engine_died(self)
        loop = self.world.loop
        loop.at(loop.now + loop.draw() * 0.01, self._report)

    @property
    def has_ended(self) -> bool:
        return self._ended.done()

    async def wait(self) -> None:
        await asyncio.shield(self._ended)

    def forget_output(self) -> None:
        pass

    def obituary(self) -> str:
        return how_ended(self._returncode)

    def dead_error(self) -> EngineDeadError:
        death = self.death()
        return EngineDeadError(death.sentence, cause=death.cause, suspects=death.suspects)

    def death(self) -> Death:
        return death_of(self._returncode, self.last_step(), wedge=self.wedge)

    def last_step(self) -> LastStep | None:
        if self.alive:
            self._last_step = breadcrumbs.read(STEPS)
        return self._last_step

    def utility(self) -> Any:
        return breadcrumbs.read_utility(STEPS) if self.alive else None

    def abort(self) -> None:
        if self.wedge is not None:
            self.world.killed_as_hung(self)
        self.die(ABORTED)

    def kill(self) -> None:
        self.die()

    async def stop(self, grace_s: float) -> None:
        await asyncio.wait({self._ended}, timeout=grace_s)
        self.die()
        await self.wait()

    def remove_directory(self) -> None:
        pass

    def _report(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def _run(self) -> None:
        try:
            code = engine_process.serve(self._router, "simulated", STEPS)  # type: ignore[arg-type]
        except Died:
            return
        if self.alive:
            self.die(code)


class SimProcesses:
    """In the place of `EngineProcesses`: a process for each engine."""

    world: World  # of the schedule that runs

    def __init__(self, executor: object, first: object, *, standby: bool) -> None:
        pass

    async def take(self) -> SimEngineProcess:
        return self.world.new_engine()

    def engine_runs(self) -> None:
        pass

    async def close(self) -> None:
        pass


class AtOnce:
    """In the place of a thread pool: work is done when it is handed over."""

    def __init__(self, *args: object) -> None:
        pass

    def submit(self, work, *args):  # type: ignore[no-untyped-def]
        return Done(work(*args))

    def shutdown(self, **options: object) -> None:
        pass


class Done:
    """A result that is there."""

    def __init__(self, value: object) -> None:
        self._value = value

    def result(self) -> object:
        return self._value


def importer(world_of_now: type[SimProcesses]):  # type: ignore[no-untyped-def]
    """In the place of `import_executor`."""

    def import_executor(target: str):  # type: ignore[no-untyped-def]
        engine = world_of_now.world.engine
        return (lambda config: SimExecutor(config, engine)), 0.0

    return import_executor
