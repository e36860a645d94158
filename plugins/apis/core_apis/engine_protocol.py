"""The engine interface that the server needs.

Owns: the Protocol. Never does: implement it (`core_frontend.async_engine.AsyncEngine` does). Called by: routes,
generation, metrics; tests put a small fake in its place.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from core.api.config import EngineConfig
from core.api.messages import EngineReady
from core.api.sampling_params import SamplingParams
from core.api.stats import SchedulerStats
from core_frontend.adapters import Adapters
from core_frontend.api.outputs import RequestOutput
from core_frontend.api.pooling_params import PoolingParams
from core_frontend.group.member import EngineState
from core_frontend.group.moves import GroupMoves
from core_frontend.queue.limit import QueueLimit
from core_frontend.request_terms import RequestTerms
from core_supervision.control import EngineControl
from core_supervision.restart_log import RestartLog
from core_tokens.tokenizer import Tokenizer


class ServingEngine(Protocol):
    """An engine that runs requests."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer."""
        ...

    @property
    def queue(self) -> QueueLimit:
        """Return the limit on waiting requests, with their current number."""
        ...

    @property
    def config(self) -> EngineConfig:
        """Return the configuration that the engine was built from."""
        ...

    @property
    def ready(self) -> EngineReady:
        """Return the engine's first message."""
        ...

    @property
    def num_live(self) -> int:
        """Return the number of requests that wait or run."""
        ...

    @property
    def live_ids(self) -> list[str]:
        """Return the ids of the requests that wait or run."""
        ...

    @property
    def stats(self) -> SchedulerStats:
        """Return the latest state of the scheduler."""
        ...

    @property
    def stats_of_engines(self) -> Sequence[SchedulerStats]:
        """Return the latest state of the scheduler of each engine of a group; empty for one engine."""
        ...

    @property
    def engines(self) -> Sequence[EngineState]:
        """Return the state of each engine of a group; empty for one engine."""
        ...

    @property
    def moves(self) -> GroupMoves | None:
        """Return what drains engines of a group; None for one engine."""
        ...

    @property
    def restarts(self) -> RestartLog:
        """Return the record of engines that died and were restarted."""
        ...

    @property
    def control(self) -> EngineControl:
        """Return the control that pauses the engine, puts it to sleep and replaces its weights."""
        ...

    @property
    def adapters(self) -> Adapters:
        """Return the adapters of the engine, where it has some."""
        ...

    def generate(
        self, prompt: Mapping[str, Any], params: SamplingParams | PoolingParams, request_id: str, terms: RequestTerms
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the outputs of one request in the form of `params.output_kind`; for a pooling request, one
        `PooledOutput`.

        Closing it early aborts the request.

        Raises RequestError at the first step for a bad request, EngineDeadError when the engine is gone.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a request; its stream gets a last output with finish reason `abort`. Unknown ids are ignored."""
        ...

    async def reset_prefix_cache(self, *, restart: bool = False) -> bool:
        """Drop all cached prefixes.

        Return False, and change nothing, while requests run, unless `restart` restarts them.
        """
        ...

    async def profile(self, method: str) -> str:
        """Call `start_profile` or `stop_profile`; return the directory of traces, or the trace that was written.

        Raises RequestError (409) if it cannot be done now.
        """
        ...

    async def check_health(self) -> None:
        """Raise EngineDeadError if the engine is gone for good, EngineStalledError if it has been silent, or
        restarting, for too long.
        """
        ...
