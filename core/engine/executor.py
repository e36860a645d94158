"""The contract of the part that computes an engine's steps.

Owns: the contract of an executor, its optional parts, and what builds one. Never does: compute. Called by: the step queue (asks
for steps), held requests (have grammars prepared), the lifecycle (has memory given back and weights replaced),
`core.engine.executors` (builds one); plugins of kind `executor` implement it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from core.api.config import EngineConfig
from core.api.sampling_params import SamplingParams
from core.api.step_plan import StepPlan, StepResult
from core.api.structured_outputs import CompiledGrammar
from core.api.weights import MemoryPart, WeightSource, WeightsState, WeightUpdate


class Executor(Protocol):
    """Computes steps, one after the other.

    num_blocks: blocks of the KV cache.
    page_bytes: bytes of one block, in all layers of its group.
    numerics:   what results depend on.
    phases:     (name, seconds) of the start.

    An executor may also have `lockstep`, a bool: whether steps that compute nothing reach it too, because others compute
    theirs at the same time.
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
        """Give memory and threads back."""
        ...


class ExecutorMaker(Protocol):
    """Kind `executor`: the object that `core_load` answers. It holds nothing of a device; the executor that it builds does."""

    def build(self, config: EngineConfig) -> Executor:
        """Open the device, read the weights and return an executor that is ready for its first step.

        Raises UserError for a configuration that cannot be served.
        """
        ...


@runtime_checkable
class QueueingExecutor(Executor, Protocol):
    """An executor with a queue of its own. Without one, the engine's thread runs ahead of `execute` by one step.

    max_in_flight: how many steps it takes before it is asked for the result of the first; 0: it has no queue after all.
    """

    max_in_flight: int

    def submit(self, plan: StepPlan) -> object:
        """Take a plan, to be computed after all earlier ones, and return a ticket for its result. Does not wait.

        An exception fails the sequences of this step.
        """
        ...

    def result(self, ticket: object) -> StepResult:
        """Wait for a step. An exception fails its sequences, and those of all steps behind it start over.

        Tickets are asked for in order and at most once. Those of steps that were given up are never asked for; whatever
        became of them concerns nobody.
        """
        ...


@runtime_checkable
class PreparingExecutor(Executor, Protocol):
    """An executor that makes grammars ready beside its steps. Without it, a sequence's first step does."""

    def is_prepared(self, grammar: CompiledGrammar) -> bool:
        """Whether a step would take this grammar without delay. Takes no time, and raises nothing."""
        ...

    def prepare(self, grammar: CompiledGrammar) -> None:
        """Import, read and keep whatever the grammar needs. Called by another thread than that of the steps, for one grammar
        at a time, while steps are computed.

        An exception ends the sequences with this grammar.
        """
        ...


@runtime_checkable
class CheckingExecutor(Executor, Protocol):
    """An executor that looks at parameters of requests, for the plugins that read them."""

    def check_params(self, params: SamplingParams) -> str:
        """What is wrong with them: a sentence, empty when nothing is. Called between two steps; raises nothing."""
        ...


class Profiler(Protocol):
    """Records what an executor does. Called by the thread that computes steps, between two of them.

    Each raises UtilityError, which says why it cannot be done.
    """

    def start(self) -> str:
        """Record from now on; returns where traces go."""
        ...

    def stop(self) -> None:
        """Record no more, and begin to write."""
        ...

    def written(self) -> str | None:
        """The newest trace; None while it is being written."""
        ...


@runtime_checkable
class ProfiledExecutor(Executor, Protocol):
    """An executor whose steps can be recorded. profiler: None where none is configured."""

    profiler: Profiler | None


class Reloader(Protocol):
    """Gives memory back and replaces weights. Called by the thread that computes steps, between two of them.

    state:   sources and version of the weights.
    missing: parts of the memory that are not there, also after a call that failed.
    """

    state: WeightsState

    @property
    def missing(self) -> frozenset[MemoryPart]:
        """As above."""
        ...

    def release(self, level: int) -> None:
        """Give weights and cache back, whole or not at all. Raises UserError, OSError.

        level: 1 writes prepared weights to a file first.
        """
        ...

    def restore(self, parts: Sequence[MemoryPart]) -> None:
        """Bring parts back. Raises UserError when that cannot be; parts that are back by then stay."""
        ...

    def stage(self, update: WeightUpdate) -> WeightSource:
        """Check an update, and copy what cannot be read again. Raises UserError, OSError."""
        ...

    def discard(self, source: WeightSource) -> None:
        """Drop what was staged, unless the weights in use are made of it."""
        ...

    def settle(self, staged: Sequence[WeightSource]) -> None:
        """Give back the memory of kept tensors that neither the weights in use nor `staged` are made of."""
        ...

    def apply(self, sources: Sequence[WeightSource], version: str | None, *, frees_first: bool = False) -> None:
        """Use staged updates, all or none; plans after it name no sequence of one before. Raises UserError.

        Tensors that newer ones replace are kept until `settle`: the next engine may have to read them.
        frees_first: whether the weights and the cache in use are given back before others are read. Raises EngineDeadError
                     when neither they nor others can be read then.
        """
        ...

    def reload(self) -> None:
        """Read all weights again, as their files are now. Raises UserError."""
        ...


@runtime_checkable
class ReloadingExecutor(Executor, Protocol):
    """An executor that sleeps, and takes new weights."""

    reloader: Reloader
