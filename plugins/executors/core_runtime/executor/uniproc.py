"""The executor for one device: the worker runs in the engine's own process and thread.

Owns: one worker, and its construction. Never does: cross a process border. Called by: the engine core; the manifest.
"""

from __future__ import annotations

from core.api.adapters import AdapterFacts, AdapterSource
from core.api.config import EngineConfig
from core.api.sampling_params import SamplingParams
from core.api.step_plan import StepPlan, StepResult
from core.api.structured_outputs import CompiledGrammar
from core_kv_connectors.halves.thread import HalfThread
from core_kv_connectors.peers.page_shape import PageShape
from core_runtime.executor.adapters.towers import AdaptedTower
from core_runtime.executor.profiling import profiler_of
from core_runtime.executor.reloading.reloader import Reloader
from core_runtime.executor.steps.ahead import MOST_IN_FLIGHT, Begun
from core_runtime.executor.worker_class import worker_class


class UniprocExecutor:
    """Runs steps in the calling process. The engine core owns it.

    num_blocks, page_bytes: number and size of KV blocks.
    numerics, phases, state: see `Worker`.
    profiler: records steps; None if it is not configured.
    reloader: releases weights and cache, and replaces weights.
    max_in_flight: maximum steps in flight on an asynchronous device; 0: each step is waited for.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.worker = worker_class(config)(config)
        self.num_blocks = self.worker.num_blocks
        self.page_bytes = self.worker.kv_memory.page_bytes
        self.numerics = self.worker.numerics
        self.phases = self.worker.phases
        self.state = self.worker.state
        self.reloader = Reloader(self.worker)
        self.max_in_flight = 0 if self.worker.ahead is None else MOST_IN_FLIGHT
        self.profiler = profiler_of(config)

    @property
    def recordings(self) -> dict[str, int]:
        """Counts of the target's calls since its weights last changed, see `Recorder.counts`; empty while it sleeps."""
        runner = getattr(self.worker, "runner", None)
        return {} if runner is None else runner.forward.recorder.counts()

    @property
    def page_shape(self) -> PageShape:
        """The shape of a KV page, for engines with another number of ranks."""
        return self.worker.page_shape(1)

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step and return its result."""
        return self.worker.execute(plan)

    def submit(self, plan: StepPlan) -> Begun:
        """Begin one step after the previous ones; returns its ticket."""
        return self.worker.begin(plan)

    def result(self, ticket: object) -> StepResult:
        """Wait for a step that was submitted."""
        assert isinstance(ticket, Begun)
        return self.worker.finish(ticket)

    def used_bytes(self, group: int, part: int) -> list[tuple[int, int]]:
        """Return the ranges of a KV page that are filled, see `KVMemory.used_bytes`."""
        return self.worker.kv_memory.used_bytes(group, part)

    def open_kv_half(self, name: str) -> HalfThread:
        """Open the worker half of a KV connector that moves blocks itself. name: as in `--kv-connectors`."""
        return self.worker.kv_halves.open(name, self.worker.kv_memory)

    def is_prepared(self, grammar: CompiledGrammar) -> bool:
        """Whether a step could use this grammar without delay."""
        return self.worker.grammars.is_prepared(grammar)

    def prepare(self, grammar: CompiledGrammar) -> None:
        """Prepare a grammar; called in another thread than that of the steps."""
        self.worker.grammars.prepare(grammar)

    def read_adapter(self, source: AdapterSource) -> AdapterFacts:
        """Read an adapter; called in another thread than that of the steps."""
        return self.worker.read_adapter(source, self.reloader.state)

    def place_adapter(self, digest: str) -> None:
        """Let later plans use an adapter that was read."""
        self.worker.placed().place(digest)

    def drop_adapter(self, digest: str) -> None:
        """Forget an adapter that no sequence uses."""
        self.worker.placed().drop(digest)
        if self.worker.tower is not None:
            self.worker.tower.drop(digest)

    def adapt_tower(self, tower: AdaptedTower) -> None:
        """Have a tower keep what adapters change of it; called before the first adapter is read."""
        self.worker.tower = tower

    def check_params(self, params: SamplingParams) -> str:
        """Validate a request's parameters with the logits processors. Returns an error message, empty if they are valid."""
        processors = self.worker.processors
        return "" if processors is None else processors.check(params)

    def close(self) -> None:
        """Close the worker, which releases the device."""
        self.worker.close()


class UniprocMaker:
    """Builds the executor; implements `core.engine.executor.ExecutorMaker`."""

    def build(self, config: EngineConfig) -> UniprocExecutor:
        """Open the device and read the weights."""
        return UniprocExecutor(config)
