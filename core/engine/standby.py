"""Processes for engines to come.

Owns: `EngineProcesses`: one that was spawned for the first engine, one that waits for the next death, if asked for, and the
file in memory that engines hand their weights on in.
Never does: configure or judge them. Called by: `OwnedEngineSource`.

A process that waits has imported all that an engine of its executor needs, which is most of a start's time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from concurrent.futures import ThreadPoolExecutor

from core.engine.child import EngineProcess

SETTLE_S = 2.0
"""Time after which the next process is spawned: an engine that has just come up has requests to go on with first."""
STOP_S = 0.0


class EngineProcesses:
    """Use it from one event loop.

    executor: MODULE:CLASS of another executor than the default.
    first:    the process for the first engine, spawned already.
    standby:  whether one waits while an engine runs.
    """

    def __init__(self, executor: str | None, first: EngineProcess | None, *, standby: bool) -> None:
        self._executor = executor
        self._waiting = first
        self._standby = standby
        self._spawning: asyncio.Task[None] | None = None
        self._weights_file: int | None = None
        self._spawner = ThreadPoolExecutor(1, "engine-spawner")
        # The thread exists from now on, so it has today's priority: that of the server is lowered later, and a process
        # inherits the priority of the thread that spawns it.
        self._spawner.submit(bool)

    def take(self) -> EngineProcess:
        """A process that has no configuration yet, the caller's from now on. Raises UserError where none can be spawned."""
        self._cancel()
        process = self._waiting
        self._waiting = None
        if process is not None and process.has_ended:
            process.discard()
            process = None
        if process is None:
            process = self._spawned()
        if self._weights_file is None and process.weights_file is not None:
            self._weights_file = os.dup(process.weights_file)
        return process

    def engine_runs(self) -> None:
        """Spawn the one that waits, a little later."""
        if self._standby and self._waiting is None:
            self._cancel()
            self._spawning = asyncio.create_task(self._spawn())

    async def close(self) -> None:
        """End the one that waits, and give the kept weights back."""
        self._cancel()
        if self._spawning is not None:
            await asyncio.gather(self._spawning, return_exceptions=True)
        if self._waiting is not None:
            self._waiting.kill()
            await self._waiting.stop(STOP_S)
            self._waiting = None
        if self._weights_file is not None:
            os.close(self._weights_file)
            self._weights_file = None

    def _cancel(self) -> None:
        if self._spawning is not None:
            self._spawning.cancel()

    async def _spawn(self) -> None:
        await asyncio.sleep(SETTLE_S)
        with contextlib.suppress(OSError):  # the next engine's start tells of it, if it lasts
            self._waiting = self._spawned()

    def _spawned(self) -> EngineProcess:
        return self._spawner.submit(EngineProcess.spawn, self._executor, self._weights_file).result()
