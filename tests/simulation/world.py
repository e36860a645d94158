"""One simulated server from its start to its end, while the events of a schedule happen to it.

Owns: `World`: what all parts share, and the order of a run: start, events, calm, the last questions, the end.
Never does: judge (the invariants do), or make schedules. Called by: `play`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from core.api.config import (
    CacheConfig,
    EngineConfig,
    ModelConfig,
    PluginChoices,
    ResolvedPlugin,
    RestartConfig,
    SchedulerConfig,
    WeightTransferConfig,
)
from core.engine.loop import EngineLoop
from core_supervision.lifecycle_observer import LifecycleObserver
from tests.kv.connector_rows import asked_by
from tests.simulation import adapters
from tests.simulation import events as e
from tests.simulation.answers import Answer
from tests.simulation.api_process import Front
from tests.simulation.book import Book
from tests.simulation.clock import Clock
from tests.simulation.disk import RecordFile
from tests.simulation.engine import SimEngineProcess
from tests.simulation.faults import Faults
from tests.simulation.invariants import Invariants
from tests.simulation.journal import JournalFiles
from tests.simulation.loop import SimLoop
from tests.simulation.network import Network
from tests.simulation.owner import AloneServer, SharedServer
from tests.simulation.weights import VOCAB_SIZE
from tests.simulation.weights_history import WeightsHistory

MAX_MODEL_LEN = 48
USUAL_S = 0.03
"""Seconds that an operation of the reloader usually takes."""
MOST_VIOLATIONS = 12
MANY_DEATHS = 3
"""Deaths from which on a request may be taken for their cause."""

POLICIES = tuple(
    ResolvedPlugin(kind="policy", name=name, target=f"core_policies.{name}.manifest")
    for name in ("fcfs", "priority", "fair")
)


@dataclass(frozen=True, slots=True)
class Violation:
    """kind: in a word. sentence: what was seen. at: simulated seconds."""

    kind: str
    sentence: str
    at: float

    def __str__(self) -> str:
        return f"{self.kind} at {self.at:.3f} s: {self.sentence}"


class World:
    """schedule: what happens. clock: the clock that the product reads.

    record_lost: whether an engine died while the record for the next one was older than its state, as the disk had failed.
    """

    def __init__(self, schedule: e.Schedule, loop: SimLoop, clock: Clock, record: RecordFile) -> None:
        self.schedule = schedule
        self.settings = schedule.settings
        self.loop = loop
        self.clock = clock
        self.record = record
        self.config = engine_config(schedule.settings)
        self.network = Network(loop, schedule.settings.delay_s)
        self.faults = Faults()
        self.book = Book()
        self.fronts: dict[int, Front] = {}
        self.answers: list[Answer] = []
        self.violations: list[Violation] = []
        self.engine: SimEngineProcess | None = None
        self.engine_loop: EngineLoop | None = None
        self.kept_tensors: set[str] = set()
        self.weights = WeightsHistory(self)
        self.step_s = schedule.settings.step_s
        self.stood_still_s = 0.0
        self.num_deaths = 0
        self.step_failed = False
        self.record_lost = False
        self.sleep_failed = False
        self.journal_files = JournalFiles(self._pass_by)
        self._num_engines = 0
        self._slow: dict[str, float] = {}
        self._calls: list[tuple[Front, asyncio.Task[None]]] = []

    async def run(self) -> None:
        """Everything that happens."""
        server = self._server = SharedServer(self) if self.settings.num_apis else AloneServer(self)
        await self._until(lambda: len(self.serving()) == max(1, self.settings.num_apis), 60.0)
        begin = self.loop.now
        for event in self.schedule.events:
            delay = begin + event.at - self.loop.now
            if delay > 0:
                await asyncio.sleep(delay)
            await self._happens(event)
        invariants = Invariants(self)
        await invariants.check_calm()
        await server.close()
        invariants.check_end()

    def calls(self) -> list[asyncio.Task[None]]:
        """Those of API processes that live."""
        return [task for front, task in self._calls if front.process.alive]

    def violated(self, kind: str, sentence: str) -> None:
        """Something is wrong."""
        if len(self.violations) < MOST_VIOLATIONS:
            self.violations.append(Violation(kind, sentence, self.loop.now - 1000.0))

    def serving(self) -> list[Front]:
        """API processes that answer."""
        return [front for front in self.fronts.values() if front.serves]

    def new_engine(self) -> SimEngineProcess:
        """The next life of the engine."""
        self.engine_loop = None
        self.engine = SimEngineProcess(self, self._num_engines)
        self._num_engines += 1
        return self.engine

    def engine_died(self, engine: SimEngineProcess) -> None:
        """For the judgement of answers and of the next engine's state."""
        self.num_deaths += 1
        if self.engine_loop is not None and engine is self.engine:
            observers = self.engine_loop._core.observers
            keepers = [each.lifecycle.keeper for each in observers if isinstance(each, LifecycleObserver)]
            self.record_lost |= not all(keeper.is_recorded for keeper in keepers)

    def server_died(self) -> None:
        """Everything but the disk begins anew: nobody holds the next engine, whose weights are those of the checkpoint."""
        self.engine = self.engine_loop = None
        self.record.clear()
        self.record_lost = False
        self.kept_tensors.clear()
        self.weights.begin_new_file()
        self.book.begin_new_file()

    def killed_as_hung(self, engine: SimEngineProcess) -> None:
        """A violation, unless it hangs."""
        if not engine.hangs:
            self.violated("wedge", f"an engine that worked was killed: {engine.wedge}")

    def failed_at(self, point: str) -> None:
        """A failure was injected."""
        if point.startswith("step"):
            self.step_failed = True
        if point.startswith(("release", "restore")):
            self.sleep_failed = True

    @property
    def journal_failed(self) -> bool:
        """Whether records of the journal were lost, so that streams need not go on as they were."""
        return self.journal_files.has_failed

    @property
    def may_convict(self) -> bool:
        """Whether engines died so often that a request may be taken for the cause."""
        return self.num_deaths >= MANY_DEATHS

    def duration(self, what: str) -> float:
        """Seconds of an operation of the reloader."""
        return self._slow.get(what, USUAL_S) * (0.5 + 0.5 * self.loop.draw())

    @property
    def slowest_s(self) -> float:
        """Seconds of the slowest operation."""
        return max(self._slow.values(), default=0.0)

    def ask(self, front: Front, event: e.Ask) -> Answer:
        """Have a front take a request."""
        adapter = adapters.adapter_of(event, some=self.settings.adapters)
        answer = Answer(f"r{len(self.answers)}", event, self.loop.now, self.weights.newest_known, adapter)
        self.answers.append(answer)
        task = answer.task = front.spawn(front.ask, event, answer)
        if event.leave_s:
            self.loop.at(self.loop.now + event.leave_s, self._leave, front, answer, task)
        return answer

    def _pass_by(self, place: str) -> None:
        """The server's process comes by a place at which its disk may fail."""
        if self.engine is not None:
            self.faults.pass_by(self.engine, place)

    async def _happens(self, event: e.AnyEvent) -> None:
        match event:
            case e.Kill():
                if self.engine is not None:
                    self.engine.die()
            case e.Fault():
                self.faults.arm(event)
            case e.Slow():
                self._slow[event.what] = event.seconds
            case e.Jump():
                self._jump(event)
            case e.Crash():
                self._server.crash(event.api)
            case _:
                front = await self._front(event.api)
                if front is None:
                    return
                if isinstance(event, e.Ask):
                    self.ask(front, event)
                else:
                    call: Callable[[Any], Awaitable[None]] = getattr(front, type(event).__name__.lower())
                    self._calls.append((front, front.spawn(call, event)))

    def _jump(self, event: e.Jump) -> None:
        if event.wall:
            self.clock.offset += event.seconds
        else:
            self.loop.now += event.seconds
            self.stood_still_s += event.seconds

    async def _front(self, number: int) -> Front | None:
        """The API process with this number if it answers, else another one."""
        await self._until(lambda: bool(self.serving()), 30.0)
        serving = self.serving()
        wanted = self.fronts.get(number)
        return wanted if wanted in serving else (serving[0] if serving else None)

    async def _until(self, done: Callable[[], bool], limit_s: float) -> bool:
        end = self.loop.now + limit_s
        while not done() and self.loop.now < end:
            await asyncio.sleep(0.03)
        return done()

    def _leave(self, front: Front, answer: Answer, task: asyncio.Task[None]) -> None:
        if answer.ended is not None or not front.serves:
            return
        if answer.event.aborts and front.engine is not None:
            front.spawn(front.engine.abort, answer.name)
        else:
            task.cancel()


@lru_cache(maxsize=4)  # without a limit, 40,000 schedules would keep as many for each collection of garbage to visit
def engine_config(settings: e.Settings) -> EngineConfig:
    """The engine's configuration, which schedules with equal settings share."""
    cache = CacheConfig(
        block_size=settings.block_size,
        num_blocks=settings.num_blocks,
        host_bytes=settings.host_pages * settings.block_size * 8,
        disk_path="disk" if settings.disk else None,
        disk_bytes=1 << 20 if settings.disk else 0,
        eviction=settings.eviction,
        share_per_key=settings.share,
    )
    return EngineConfig(
        model=ModelConfig(
            model="simulated",
            served_names=("simulated",),
            max_model_len=MAX_MODEL_LEN,
            vocab_size=VOCAB_SIZE,
            skip_tokenizer=True,
        ),
        cache=cache,
        scheduler=SchedulerConfig(
            max_num_seqs=settings.limit,
            max_num_batched_tokens=settings.budget,
            max_model_len=MAX_MODEL_LEN,
            policy=settings.policy,
            num_speculative_tokens=settings.drafts,
            adaptive_drafts=settings.drafts > 1,
            async_scheduling=settings.ahead,
            max_adapters=adapters.CONFIG.max_loras if settings.adapters else 0,
        ),
        adapters=adapters.CONFIG if settings.adapters else None,
        plugins=PluginChoices(loader="none", platform="none", table=POLICIES, kv_connectors=asked_by(cache)),
        restarts=RestartConfig(backoff_s=0.05),
        wedge_timeout_s=10.0,
        disable_log_stats=True,
        sleeps=True,
        weight_transfer=WeightTransferConfig(),
    )
