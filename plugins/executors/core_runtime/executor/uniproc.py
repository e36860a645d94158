"""The executor for one device: the worker runs in the engine's own process and thread.

Owns: one worker, and building it. Never does: cross a process border. Called by: the engine core; the manifest.
"""

from __future__ import annotations

from core.api.config import EngineConfig
from core.api.sampling_params import SamplingParams
from core.api.step_plan import StepPlan, StepResult
from core.api.structured_outputs import CompiledGrammar
from core_runtime.executor.profiling import StepProfiler
from core_runtime.executor.reloader import Reloader
from core_runtime.executor.steps_ahead import MOST_IN_FLIGHT, Begun
from core_runtime.executor.worker import Worker


class UniprocExecutor:
    """Runs steps in place.

    num_blocks, page_bytes: of KV blocks.
    numerics, phases, state: see `Worker`.
    profiler: records steps; None where none is configured.
    reloader: gives weights and cache back, and replaces weights.
    max_in_flight: steps that a device which computes in its own time is given at once; 0: each is waited for.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.worker = Worker(config)
        self.num_blocks = self.worker.num_blocks
        self.page_bytes = self.worker.kv_memory.page_bytes
        self.numerics = self.worker.numerics
        self.phases = self.worker.phases
        self.state = self.worker.state
        self.reloader = Reloader(self.worker)
        self.max_in_flight = 0 if self.worker.ahead is None else MOST_IN_FLIGHT
        self.profiler = None if config.profiler is None else StepProfiler(config.profiler)

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step and return what it produced."""
        return self.worker.execute(plan)

    def submit(self, plan: StepPlan) -> Begun:
        """Begin one step behind those before it."""
        return self.worker.begin(plan)

    def result(self, ticket: object) -> StepResult:
        """Wait for a step that was submitted."""
        assert isinstance(ticket, Begun)
        return self.worker.finish(ticket)

    def is_prepared(self, grammar: CompiledGrammar) -> bool:
        """Whether a step would take this grammar without delay."""
        return self.worker.grammars.is_prepared(grammar)

    def prepare(self, grammar: CompiledGrammar) -> None:
        """Make it ready, in another thread than that of the steps."""
        self.worker.grammars.prepare(grammar)

    def check_params(self, params: SamplingParams) -> str:
        """What is wrong with a request's parameters, for the logits processors: a sentence, empty when nothing is."""
        processors = self.worker.processors
        return "" if processors is None else processors.check(params)

    def close(self) -> None:
        """Give the device back."""
        self.worker.close()


class UniprocMaker:
    """Implements `core.engine.executor.ExecutorMaker`."""

    def build(self, config: EngineConfig) -> UniprocExecutor:
        """Open the device and read the weights."""
        return UniprocExecutor(config)
