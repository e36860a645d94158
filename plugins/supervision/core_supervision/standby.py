"""Processes for future engines.

Owns: `EngineProcesses`: the process spawned for the first engine, an optional standby process for the next death, and the
files in memory that engines inherit.
Never does: configure or judge them. Called by: `OwnedEngineSource`.

A standby process has imported everything that an engine with its executor needs, which is most of a start's time.
"""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor

from core.api.errors import UserError
from core_supervision.child import EngineProcess
from core_supervision.link.shared_file import SharedFiles

SETTLE_S = 2.0
"""Seconds after which the standby process is spawned: an engine that has just started has requests to continue first."""


class EngineProcesses:
    """The processes of one source of engines, used from one event loop.

    executor: MODULE:CLASS of another executor than the default.
    first:    an already spawned process for the first engine.
    standby:  whether a standby process waits while an engine runs.
    """

    def __init__(self, executor: str | None, first: EngineProcess | None, *, standby: bool) -> None:
        self._executor = executor
        self._waiting = first
        self._standby = standby
        self._files: SharedFiles | None = None
        self._refilling: asyncio.Task[None] | None = None
        self._spawner = ThreadPoolExecutor(1, "engine-spawner")
        # Starts the thread now, with the present priority: the server's is lowered later, and a process inherits the
        # priority of the thread that spawns it.
        self._spawner.submit(bool)

    async def take(self) -> EngineProcess:
        """Return a process without a configuration, owned by the caller. Raises UserError when none can be spawned."""
        await self._stop_refilling()
        process = self._waiting
        self._waiting = None
        if process is not None and process.has_ended:
            process.discard()
            process = None
        if process is None:
            process = await self._spawn()
        if self._files is None and process.files is not None:
            self._files = process.files.again()
        return process

    def engine_runs(self) -> None:
        """Spawn the standby process, if there is to be one, after `SETTLE_S` seconds."""
        if self._standby and self._waiting is None:
            self._refilling = asyncio.create_task(self._refill())

    async def close(self) -> None:
        """End the standby process and close the files. May be called twice."""
        await self.rest()
        if self._files is not None:
            self._files.close()
            self._files = None
        self._spawner.shutdown(wait=False)

    async def rest(self) -> None:
        """End the standby process, until the next engine runs."""
        await self._stop_refilling()
        if self._waiting is not None:
            self._waiting.kill()
            await self._waiting.stop(0.0)
            self._waiting = None

    async def _stop_refilling(self) -> None:
        if self._refilling is not None:
            self._refilling.cancel()
            await asyncio.gather(self._refilling, return_exceptions=True)
            self._refilling = None

    async def _refill(self) -> None:
        await asyncio.sleep(SETTLE_S)
        with contextlib.suppress(OSError, UserError):  # if the fault persists, the next engine's start reports it
            self._waiting = await self._spawn()

    async def _spawn(self) -> EngineProcess:
        spawning = self._spawner.submit(EngineProcess.spawn, self._executor, self._files)
        try:
            return await asyncio.shield(asyncio.wrap_future(spawning))
        except asyncio.CancelledError:
            spawning.result().discard()
            raise
