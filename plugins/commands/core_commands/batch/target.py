"""The target of a batch: an engine started by this command, or a server.

Owns: the choice, the name of the model, the number of concurrent requests. Never does: read a batch. Called by: `core
run-batch`.
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
"""Concurrent requests per sequence that an own engine runs: the next ones are prepared while these run."""
AT_ONCE_ON_SERVER = 16
"""Default number of concurrent requests on a server, which others may use too."""

Work = Callable[[Endpoint, int], Coroutine[None, None, None]]
"""Work on an endpoint: takes the endpoint, and the number of concurrent requests."""


class BatchTarget(Protocol):
    """The endpoint that answers a batch. model: identifies the model in results.

    default_model: for requests that name none; empty if none is needed.
    """

    model: str
    default_model: str

    def run(self, work: Work) -> None:
        """Run `work` while the endpoint is open."""
        ...


class OwnEngine:
    """An engine that ends with the command. model: its name in the arguments. most_at_once: limit on concurrent
    requests; None: as many as pay.
    """

    default_model = ""

    def __init__(self, parsed: Parsed, model: str, most_at_once: int | None) -> None:
        self.model = model
        self._parsed = parsed
        self._most_at_once = most_at_once

    def run(self, work: Work) -> None:
        """Start the engine and run `work` on it."""
        from core_commands.client.own_engine import run_with_own_engine

        async def with_room(endpoint: Endpoint, resolution: Resolution) -> int:
            await work(endpoint, self._most_at_once or _room(resolution.engine.scheduler))
            return 0

        self._parsed.values.setdefault(
            "disable_log_stats", Given(True, "the command")
        )  # this command prints its own progress
        run_with_own_engine(self._parsed, with_room)


class Server:
    """A server that is already running. Raises UserError, EndpointError when it has no such model, or is unreachable."""

    def __init__(self, url: str, model_name: str | None, api_key: str | None, most_at_once: int | None) -> None:
        self._url = url
        self._api_key = api_key
        self._most_at_once = most_at_once or AT_ONCE_ON_SERVER
        self.model = self.default_model = asyncio.run(self._name(model_name))

    def run(self, work: Work) -> None:
        """Run `work` on the server."""
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
    """Return the number of requests sent to an engine at once."""
    at_once = AHEAD * scheduler.max_num_seqs
    return min(at_once, scheduler.max_num_queued_reqs) if scheduler.max_num_queued_reqs else at_once
