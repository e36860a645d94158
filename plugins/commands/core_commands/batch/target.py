"""Who answers a batch: an engine of this command, or a server.

Owns: that choice, the name of the model, how many requests run at once. Never does: read a batch. Called by: `core run-batch`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Protocol

from core.args.arg import Given
from core_commands.client.endpoint import Endpoint
from core_commands.client.http_endpoint import HttpEndpoint
from core_commands.client.served_names import served_name

if TYPE_CHECKING:
    from core.api.config import SchedulerConfig
    from core_config.arguments.parser import Parsed
    from core_config.resolve import Resolution

AHEAD = 2
"""Requests at once, for each sequence that an own engine runs: the next ones are prepared while these run."""
AT_ONCE_ON_SERVER = 16
"""Unless it is said: others may use the server too."""

Work = Callable[[Endpoint, int], Coroutine[None, None, None]]
"""Takes the endpoint, and how many requests may run at once."""


class BatchTarget(Protocol):
    """model: what tells results of different models apart.

    default_model: for requests that name none; empty: none is needed.
    """

    model: str
    default_model: str

    def run(self, work: Work) -> None:
        """Do `work` while there is an endpoint."""
        ...


class OwnEngine:
    """An engine that ends with the command. model: as the arguments name it. most_at_once: of requests; None: what pays."""

    default_model = ""

    def __init__(self, parsed: Parsed, model: str, most_at_once: int | None) -> None:
        self.model = model
        self._parsed = parsed
        self._most_at_once = most_at_once

    def run(self, work: Work) -> None:
        """As `BatchTarget.run`."""
        from core_commands.client.own_engine import run_with_own_engine

        async def with_room(endpoint: Endpoint, resolution: Resolution) -> int:
            await work(endpoint, self._most_at_once or _room(resolution.engine.scheduler))
            return 0

        self._parsed.values.setdefault("disable_log_stats", Given(True, "the command"))  # it tells its progress itself
        run_with_own_engine(self._parsed, with_room)


class Server:
    """A server that runs already. Raises UserError, EndpointError when it has no such model, or is not there."""

    def __init__(self, url: str, model_name: str | None, api_key: str | None, most_at_once: int | None) -> None:
        self._url = url
        self._api_key = api_key
        self._most_at_once = most_at_once or AT_ONCE_ON_SERVER
        self.model = self.default_model = asyncio.run(self._name(model_name))

    def run(self, work: Work) -> None:
        """As `BatchTarget.run`."""
        asyncio.run(self._run(work))

    async def _name(self, wanted: str | None) -> str:
        endpoint = HttpEndpoint(self._url, self._api_key)
        try:
            return await served_name(endpoint, wanted)
        finally:
            await endpoint.close()

    async def _run(self, work: Work) -> None:
        endpoint = HttpEndpoint(self._url, self._api_key)
        try:
            await work(endpoint, self._most_at_once)
        finally:
            await endpoint.close()


def _room(scheduler: SchedulerConfig) -> int:
    """How many requests an engine is given at once."""
    at_once = AHEAD * scheduler.max_num_seqs
    return min(at_once, scheduler.max_num_queued_reqs) if scheduler.max_num_queued_reqs else at_once
