"""The contract of executors, which compute an engine's steps.

Owns: the contract of an executor, of its maker, and of the optional parts that the core itself asks for. Never does: compute.
Called by: the step queue (submits steps), `core.engine.executors` (builds one); plugins of kind `executor` implement it.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from core.api.config import EngineConfig
from core.api.sampling_params import SamplingParams
from core.api.step_plan import StepPlan, StepResult


class Executor(Protocol):
    """Computes steps, one after the other; owned by the engine core.

    num_blocks: blocks of the KV cache.
    page_bytes: bytes of one block, in all layers of its group.
    numerics:   name of the arithmetic that results depend on.
    phases:     (name, seconds) of the start.

    An executor may also have `lockstep`, a bool: whether steps that compute nothing reach it too, because other engines
    compute theirs at the same time; `apart`, an int: more than 0 if it can begin a step only when all tokens that the step
    computes are known, so that steps in flight share no sequence whose next token is unknown (sequences are divided among
    the steps equally, but at least so many are computed together); `new_page`, a function that returns memory for a page
    which all its processes see (pages in other memory are copied there first); and `open_kv_half`, a function that opens
    the other half of a KV connector, by its name (`core_kv_connectors.halves`).
    """

    num_blocks: int
    page_bytes: int
    numerics: str
    phases: list[tuple[str, float]]

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute one step.

        An exception fails the sequences of the step. The executor must accept the next plan, whose `removed` names their
        slots, whether it knows them or not.
        """
        ...

    def close(self) -> None:
        """Free memory and end threads."""
        ...


class ExecutorMaker(Protocol):
    """A plugin of kind `executor`: the object that `core_load` returns. It uses no device; the executor that it builds does."""

    def build(self, config: EngineConfig) -> Executor:
        """Open the device, read the weights and return an executor that is ready for its first step.

        Raises UserError for a configuration that cannot be served.
        """
        ...


@runtime_checkable
class QueueingExecutor(Executor, Protocol):
    """An executor with its own queue. Without one, the engine's thread plans one step ahead of `execute`.

    max_in_flight: number of steps it accepts before the result of the first is requested; 0: it has no queue after all.
    """

    max_in_flight: int

    def submit(self, plan: StepPlan) -> object:
        """Accept a plan, to be computed after all earlier ones, and return a ticket for its result. Does not wait.

        An exception fails the sequences of this step.
        """
        ...

    def result(self, ticket: object) -> StepResult:
        """Wait for a step and return its result.

        An exception fails the sequences of the step, and those of all later steps in flight start over.

        Tickets are passed in order and at most once. Those of abandoned steps are never passed; their results are not needed.
        """
        ...


@runtime_checkable
class CheckingExecutor(Executor, Protocol):
    """An executor that checks the parameters of requests, for the plugins that read them."""

    def check_params(self, params: SamplingParams) -> str:
        """Return what is wrong with the parameters, as a sentence, or an empty string. Called between steps; raises nothing."""
        ...


class Profiler(Protocol):
    """Profiler of an executor. Called by the thread that computes steps, between two of them.

    Each method raises UtilityError when it cannot be done, with the reason.
    """

    def start(self) -> str:
        """Start recording; returns where traces are written."""
        ...

    def stop(self) -> None:
        """Stop recording and start writing the trace."""
        ...

    def written(self) -> str | None:
        """Return the newest trace; None while it is being written."""
        ...


@runtime_checkable
class ProfiledExecutor(Executor, Protocol):
    """An executor whose steps can be profiled. profiler: None when none is configured."""

    profiler: Profiler | None
