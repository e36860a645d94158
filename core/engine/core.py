"""The engine core: takes requests, computes one step at a time, returns outputs.

Owns: `EngineCore`: scheduler, step queue and executor under one epoch, and the calls of its observers. Never does: sockets,
text, sampling, or anything that an observer can do, such as pausing, logging or preparing grammars.
Called by: `InprocClient` and the engine process, which decide when to step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from core.api.config import EngineConfig
from core.api.errors import CoreError
from core.api.messages import EngineOutput, EngineOutputs, EngineRequest
from core.api.stats import SchedulerStats
from core.api.step_plan import SequenceKey
from core.engine.engine_calls import EngineCalls
from core.engine.executor import Executor
from core.engine.executor_calls import ExecutorCalls
from core.engine.faults import Faults
from core.engine.observer import EngineObserver, hooks
from core.engine.scheduling import build_scheduler
from core.engine.sequences import Sequences
from core.engine.step_queue import step_queue
from core.engine.step_runner import StepRunner
from core.engine.utilities import OWNER
from core.kv.connectors import KVConnectors
from core.plugin.table import PluginTable
from core.scheduler.results import StepOutputs

SAVE_S = 3.0
"""Limit in seconds of saving cached KV blocks at the end; a client waits a little longer before it kills the engine."""


class EngineCore:
    """Scheduler, step queue and executor of one engine, under one epoch.

    A request can never stop the loop: one that cannot be added, whose step fails, or that breaks an invariant ends with finish
    reason `error`, and no number of such requests ends the engine (see `Faults`).

    observers:   in the order in which their hooks are called.
    kv_services: connectors of the KV manager; None: blocks are cached on the device only.

    has_news, is_halted, waiting_clients: see `core.engine.observer.Engine`.
    """

    def __init__(
        self,
        config: EngineConfig,
        executor: Executor,
        epoch: int = 0,
        *,
        observers: Sequence[EngineObserver] = (),
        kv_services: KVConnectors | None = None,
    ) -> None:
        self.config = config
        self.executor = executor
        self.epoch = epoch
        self.observers = tuple(observers)
        self.kv_services = KVConnectors() if kv_services is None else kv_services
        self.has_news = False
        self.is_halted = False
        self.waiting_clients: tuple[int, ...] = ()
        plugins = PluginTable(config.plugins.table)
        trace = next((observer.trace for observer in observers if observer.trace is not None), None)
        self.queue = step_queue(executor, ahead=config.scheduler.async_scheduling, trace=trace)
        self.scheduler = build_scheduler(config, self.queue, self.kv_services, plugins)
        pools = config.model.pooling
        faults = Faults(None if pools is None else pools.usual)
        submitted, finished = (hooks(self.observers, name) for name in ("submitted", "finished"))
        self._runner = StepRunner(self.scheduler, self.queue, plugins, faults, submitted, finished)
        self.sequences = Sequences(self.scheduler, self._runner, plugins)
        self._calls = EngineCalls(self.scheduler, self.sequences, ExecutorCalls(executor, self.queue), self.observers)
        self._before_step = hooks(self.observers, "before_step")
        self._report = hooks(self.observers, "report")
        for observer in self.observers:
            observer.attach(self)
        # After `attach`, in which observers may make their gates.
        self.sequences.gates += [observer.gate for observer in self.observers if observer.gate is not None]
        try:
            for observer in self.observers:
                observer.before_first()
        # A refused start must not leave the memory of the device in use.
        except CoreError:
            self.close()
            raise

    def compute(self, request: EngineRequest) -> list[EngineOutput]:
        """Compute an internal request to its end, while there are no others; returns its outputs."""
        self.add([request])
        outputs: list[EngineOutput] = []
        while self.has_work():
            outputs += self.step().outputs
        return outputs

    def add(self, requests: Iterable[EngineRequest]) -> None:
        """Queue sequences. One that the scheduler refuses gets an error output from the next step."""
        self.sequences.add(requests)

    def refuse(self, request_id: str, choice: int, handle: int, reason: str) -> None:
        """End a sequence that never started: the next step reports `reason` as its error."""
        self.sequences.refuse(request_id, choice, handle, reason)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop all choices of these requests, without an output. Unknown ids are ignored."""
        self.sequences.abort(request_ids)

    def abort_choices(self, keys: Iterable[SequenceKey]) -> None:
        """Drop single choices, without an output. Unknown keys are ignored."""
        self.sequences.abort_choices(keys)

    def has_work(self) -> bool:
        """Whether another step would compute or report something."""
        if self._runner.ended or self.has_news or self.scheduler.in_flight:
            return True
        return not self.is_halted and self.sequences.unfinished

    @property
    def waits(self) -> bool:
        """Whether sequences wait for work outside the steps: for keys and values, or at a gate."""
        return self.sequences.at_gates or self.scheduler.waits_for_kv

    def step(self) -> EngineOutputs:
        """Plan one step, unless halted, and return the outputs of the oldest one in flight, the same unless planned ahead.

        Raises EngineDeadError when the executor is broken or the scheduler makes no progress.
        """
        for before_step in self._before_step:
            before_step()
        self.has_news = False
        # `has_news` is cleared above because the message that this step returns has the news.
        outputs = self._advance()
        runner = self._runner
        if runner.ended:
            outputs.records[:0] = runner.ended
            runner.ended = []
        message = EngineOutputs(self.epoch, outputs.records, self.stats(), outputs.tokens)
        if runner.begun:
            message.begun = runner.begun
            runner.begun = []
        return message

    def idle(self) -> int | None:
        """Give a few idle milliseconds to the first observer that has something to do, otherwise to the KV services.

        Returns the milliseconds after which to call again if there is still no work; None: nothing is left to do.
        """
        for observer in self.observers:
            pause_ms = observer.idle()
            if pause_ms is not None:
                return pause_ms
        return self.kv_services.save_idle(self.scheduler.kv, self.queue.copy)

    def stats(self) -> SchedulerStats:
        """Return the present state of scheduler, KV cache and observers."""
        stats = self.scheduler.stats()
        self.kv_services.report(stats)
        for report in self._report:
            report(stats)
        return stats

    def call(self, method: str, arguments: Mapping[str, Any] | None = None, client: int = OWNER) -> Any:
        """Call a utility by name; returns its result. client: number of the calling client.

        Raises UtilityError for an unknown method or argument, EngineDeadError when nothing can be computed any more.
        """
        return self._calls.call(method, arguments or {}, client)

    def client_gone(self, client: int) -> None:
        """Report to observers that a client is gone. client: its number."""
        for observer in self.observers:
            observer.client_gone(client)

    def close(self) -> None:
        """Let observers and KV services finish, which may save cached blocks, and close queue and executor."""
        # The order matters: steps that have not begun are dropped first; observers still see the executor; the KV services
        # copy blocks through the queue, so it is closed after them.
        self.queue.give_up()
        for observer in self.observers:
            observer.close()
        self.kv_services.close(self.scheduler.kv, self.queue.copy, SAVE_S)
        self.queue.close()
        self.executor.close()

    def _advance(self) -> StepOutputs:
        scheduler, runner = self.scheduler, self._runner
        if scheduler.wants_step() and not self.is_halted:
            outputs = runner.plan_and_run()
        elif scheduler.in_flight:
            outputs = runner.finish_oldest()
        else:
            # Outputs that are due must not wait for a gate.
            if not (runner.ended or self.is_halted):
                self.sequences.await_gates()
            return StepOutputs()
        self.kv_services.after_step(scheduler.kv)
        return outputs
