"""Sources of engines, which also replace dead ones.

Owns: `EngineSource`, the contract; `Reviver`, whether and when a dead engine is started again; `OwnedEngineSource`, which
starts processes. Never does: know requests. Called by: `AsyncEngine` and its recovery.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from core.api.config import EngineConfig, RestartConfig
from core.api.errors import CoreError, EngineDeadError
from core.plugin.distributions import own_row
from core_supervision.child import EngineProcess
from core_supervision.degraded_config import degraded_config
from core_supervision.link.zmq_client import ZmqClient
from core_supervision.owned_engine import start_engine
from core_supervision.standby import EngineProcesses

logger = logging.getLogger(__name__)

CALM_S = 5.0
"""Seconds after which an engine counts as stable: its death is the first of a new row."""

LONGEST_WAIT_S = 30.0

OUT_OF_MEMORY = "out_of_memory"
"""The cause of death after which the next engine runs fewer sequences at a time."""


class EngineSource(Protocol):
    """Provides clients of engines that are made from the same configuration, one at a time."""

    async def first(self) -> ZmqClient:
        """Return a client of the first engine. Raises UserError, PluginError or EngineDeadError when there is none."""
        ...

    async def next(self, dead: EngineDeadError, num_explained: int = 0) -> ZmqClient:
        """Return a client of the engine that replaces one that died of `dead`, whose client was closed.

        num_explained: number of latest deaths, including this one, that one request caused, which has ended. They are no fault
                       of the engine, and do not count.

        Raises EngineDeadError, with the whole cause, when there will be no further engine.
        """
        ...

    async def close(self) -> None:
        """Release everything kept for further engines. Clients are closed by their users."""
        ...


class Reviver:
    """Counts the deaths of one server's engines and decides on restarts. clock: returns seconds."""

    def __init__(self, terms: RestartConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._terms = terms
        self._clock = clock
        self._deaths: deque[float] = deque()
        self._num_in_row = 0
        self._up_since: float | None = None

    def came_up(self) -> None:
        """Record that an engine is up."""
        self._up_since = self._clock()

    def forgive(self, num_deaths: int) -> None:
        """Stop counting the latest deaths; the next one is the first of a new row."""
        for _ in range(min(num_deaths, len(self._deaths))):
            self._deaths.pop()
        if num_deaths:
            self._num_in_row = 0

    def delay(self, num_explained: int = 0) -> float | None:
        """Count a death or a failed start; returns the seconds until the next start, None when there is none.

        num_explained: see `EngineSource.next`.
        """
        now = self._clock()
        if self._up_since is not None and now - self._up_since >= CALM_S:
            self._num_in_row = 0
        self._up_since = None
        self._num_in_row += 1
        self._deaths.append(now)
        self.forgive(num_explained)
        while self._deaths and self._deaths[0] < now - self._terms.window_s:
            self._deaths.popleft()
        if len(self._deaths) > self._terms.limit:
            return None
        if self._num_in_row <= 1:
            return 0.0
        # Limited, because 2.0**1024 raises OverflowError, and deaths in a row are not limited by a window.
        exponent = min(self._num_in_row - 2, 30)
        return min(LONGEST_WAIT_S, self._terms.backoff_s * 2.0**exponent)


class OwnedEngineSource:
    """A source that starts engine processes; owned by the server or program that uses them.

    executor: MODULE:CLASS of an executor that is no plugin; None: the one of the configuration.
    process: an already spawned process for the first engine.
    """

    def __init__(
        self, config: EngineConfig, *, executor: str | None = None, process: EngineProcess | None = None
    ) -> None:
        self._config = config
        usual = own_row("executor")
        if executor is None and (usual is None or config.plugins.executor != usual.name):
            executor = ""  # the processes then import only what the configuration names
        self._processes = EngineProcesses(executor, process, standby=config.restarts.standby)
        self._epoch = 0
        self._num_blocks = 0
        self._reviver = Reviver(config.restarts)

    async def first(self) -> ZmqClient:
        """Start the first engine. Raises what `start_engine` raises."""
        return await self._start()

    def forgive(self, num_deaths: int) -> None:
        """Stop counting the latest deaths, which turned out not to be the engine's fault."""
        self._reviver.forgive(num_deaths)

    async def next(self, dead: EngineDeadError, num_explained: int = 0) -> ZmqClient:
        """Start another process, with a delay after repeated deaths. Raises EngineDeadError when there were too many."""
        while True:
            delay = self._reviver.delay(num_explained)
            num_explained = 0
            if delay is None:
                raise self._last_word(dead)
            if dead.cause == OUT_OF_MEMORY:
                self._lower_admission()
            await asyncio.sleep(delay)
            self._epoch += 1
            try:
                return await self._start()
            except (CoreError, OSError) as error:
                logger.error("The engine could not be started again: %s", error)
                cause = error.cause if isinstance(error, EngineDeadError) else "start_failed"
                dead = EngineDeadError(f"The engine could not be started again: {error}", cause=cause)

    @property
    def has_adapters(self) -> bool:
        """Whether its engines take adapters."""
        return self._config.adapters is not None

    async def another(self) -> ZmqClient:
        """Start an engine at a place that has none, once. Raises what `start_engine` raises; then no process is left."""
        self._epoch += 1
        try:
            return await self._start()
        except BaseException:
            await self._processes.rest()
            raise

    async def rest(self) -> None:
        """End the standby process: the place has no engine for a while."""
        await self._processes.rest()

    async def close(self) -> None:
        """End the standby process, if there is one."""
        await self._processes.close()

    async def _start(self) -> ZmqClient:
        process = await self._processes.take()
        client = await start_engine(self._config, epoch=self._epoch, process=process)
        self._num_blocks = client.ready.num_blocks
        self._reviver.came_up()
        self._processes.engine_runs()
        return client

    def _lower_admission(self) -> None:
        self._config = degraded_config(self._config, self._num_blocks)
        logger.warning(
            "After the lack of memory at most %d sequences run at a time (--max-num-seqs), with %d blocks of the KV cache.",
            self._config.scheduler.max_num_seqs,
            self._config.cache.num_blocks,
        )

    def _last_word(self, dead: EngineDeadError) -> EngineDeadError:
        terms = self._config.restarts
        if terms.limit == 0:
            return dead
        return EngineDeadError(
            f"{dead}\nIt has died more than {terms.limit} times within {terms.window_s:g} s (--engine-restarts, "
            "--engine-restart-window), so it is not started again.",
            cause=dead.cause,
        )
