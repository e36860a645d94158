"""The client of an engine, or of several, whose caller drives the steps.

Owns: `SteppedClient`, the contract. Called by: `LLM` and the run of its batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from core.api.config import EngineConfig
from core.api.messages import EngineOutput, EngineRequest
from core.api.stats import SchedulerStats
from core.api.step_plan import SequenceKey


class SteppedCore(Protocol):
    """The calls of an engine by name. config: its configuration."""

    @property
    def config(self) -> EngineConfig:
        """Return the configuration."""
        ...

    @property
    def is_halted(self) -> bool:
        """Whether no step computes anything until a further call."""
        ...

    def call(self, method: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Call a utility. Raises UtilityError."""
        ...


class SteppedClient(Protocol):
    """See `core_supervision.link.inproc.InprocClient`."""

    @property
    def core(self) -> SteppedCore:
        """Return the engine, to be called by name."""
        ...

    @property
    def worker(self) -> Any:
        """Return the worker in this process. Raises RequestError where there is none."""
        ...

    def add(self, requests: Sequence[EngineRequest]) -> None:
        """Queue sequences."""
        ...

    def abort(self, request_ids: Sequence[str]) -> None:
        """Abort all choices of these requests."""
        ...

    def abort_choices(self, keys: Sequence[SequenceKey]) -> None:
        """Abort single choices."""
        ...

    def has_work(self) -> bool:
        """Whether another step would compute or report something."""
        ...

    def step(self) -> list[EngineOutput]:
        """Return the next outputs."""
        ...

    def stats(self) -> SchedulerStats:
        """Return the present state."""
        ...

    def reset_prefix_cache(self, *, restart: bool = False) -> bool:
        """Drop all cached prefixes, unless requests run."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...
