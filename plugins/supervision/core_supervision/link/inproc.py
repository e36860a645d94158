"""The client of an engine in the same process.

Owns: `InprocClient`, whose caller drives the steps. Never does: encode messages, threads, text.
Called by: the `LLM` class.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from typing import Any

from core.api.config import EngineConfig
from core.api.messages import EngineOutput, EngineRequest
from core.api.stats import SchedulerStats
from core.api.step_plan import SequenceKey
from core.engine.composition import build_engine, find_observers
from core.engine.executor import Executor
from core.engine.executors import build_executor
from core_supervision.link.ledger import Ledger


class InprocClient:
    """An engine core that runs when `step` is called. executor: None: the one that the configuration names."""

    def __init__(self, config: EngineConfig, executor: Executor | None = None) -> None:
        make_executor = build_executor if executor is None else (lambda config: executor)
        with garbage_waits():
            self.core = build_engine(config, make_executor, find_observers())
        self._ledger = Ledger(self.core.epoch)
        self._closed = False

    def add(self, requests: Sequence[EngineRequest]) -> None:
        """Queue sequences; they get their handles here."""
        self._ledger.admit(requests)
        self.core.add(requests)

    def abort(self, request_ids: Sequence[str]) -> None:
        """Abort all choices of these requests; unknown ids are ignored."""
        self._ledger.forget(request_ids)
        self.core.abort(request_ids)

    def abort_choices(self, keys: Sequence[SequenceKey]) -> None:
        """Abort single choices, named (request_id, choice); unknown ones are ignored."""
        self._ledger.forget_choices(keys)
        self.core.abort_choices(keys)

    def has_work(self) -> bool:
        """Whether another step would compute or report something."""
        return self.core.has_work()

    def step(self) -> list[EngineOutput]:
        """Run one step and return its outputs. Raises EngineDeadError when the engine is broken."""
        return self._ledger.accept(self.core.step())

    def stats(self) -> SchedulerStats:
        """Return the present state of the engine."""
        return self.core.stats()

    def reset_prefix_cache(self, *, restart: bool = False) -> bool:
        """Drop all cached prefixes; False, without a change, when running requests still use blocks.

        restart: whether those requests start over first, with the tokens that they have.
        """
        return bool(self.core.call("reset_prefix_cache", {"reset_running_requests": restart}))

    @property
    def worker(self) -> Any:
        """The worker in this process. Raises AttributeError for an executor that has none."""
        executor: Any = self.core.executor
        return executor.worker

    def close(self) -> None:
        """Free the engine's memory and threads; may be called twice."""
        if not self._closed:
            self._closed = True
            self.core.close()


@contextlib.contextmanager
def garbage_waits() -> Iterator[None]:
    """Collect no garbage within the context.

    Objects of imports and models stay alive: searching them for garbage took 14% of the processor time of a start.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
