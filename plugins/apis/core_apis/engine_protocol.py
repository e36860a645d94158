"""An engine as the server needs it.

Owns: the Protocol. Never does: implement it (`core_frontend.async_engine.AsyncEngine` does). Called by:
routes, generation, metrics; tests put a small fake in its place.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Protocol

from core.api.config import EngineConfig
from core.api.messages import SchedulerStats
from core.api.sampling_params import SamplingParams
from core_frontend.api.outputs import RequestOutput
from core_frontend.api.pooling_params import PoolingParams
from core_frontend.queue_limit import QueueLimit
from core_frontend.request_terms import RequestTerms
from core_supervision.control import EngineControl
from core_supervision.restart_log import RestartLog
from core_tokens.tokenizer import Tokenizer


class ServingEngine(Protocol):
    """An engine that runs requests."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        ...

    @property
    def queue(self) -> QueueLimit:
        """How many requests wait, and may."""
        ...

    @property
    def config(self) -> EngineConfig:
        """What it was built from."""
        ...

    @property
    def num_live(self) -> int:
        """Requests that wait or run."""
        ...

    @property
    def stats(self) -> SchedulerStats:
        """The latest state of the scheduler."""
        ...

    @property
    def restarts(self) -> RestartLog:
        """What became of engines that died."""
        ...

    @property
    def control(self) -> EngineControl:
        """Pauses it, puts it to sleep, gives it new weights."""
        ...

    def generate(
        self, prompt: Mapping[str, Any], params: SamplingParams | PoolingParams, request_id: str, terms: RequestTerms
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs of one request, of the kind that `params.output_kind` says; of one to pool, a `PooledOutput`.

        Closing it early aborts the request.

        Raises RequestError at the first step for a bad request, EngineDeadError when the engine is gone.
        """
        ...

    async def reset_prefix_cache(self, *, restart: bool = False) -> bool:
        """Forget all cached prefixes; False, and no change, while requests run that do not `restart`."""
        ...

    async def profile(self, method: str) -> str:
        """`start_profile` or `stop_profile`; returns the directory of traces, or the trace that was written.

        Raises RequestError (409) when it cannot be done now.
        """
        ...

    async def check_health(self) -> None:
        """Raise EngineDeadError when the engine is gone for good, EngineStalledError when it has been silent, or is being
        started again, for too long."""
        ...
