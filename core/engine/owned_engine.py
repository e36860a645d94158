"""The connection to an engine process that is ours: we start it, and we end it.

Owns: `OwnedEngine`: the start, the end, and an eye on the process in between. Never does: know requests, or spawn the process.
Called by: `ZmqClient`.
"""

from __future__ import annotations

import asyncio
import contextlib

from core.api.errors import EngineDeadError
from core.api.messages import EngineReady, Shutdown
from core.engine import wire
from core.engine.child import LAST_WORDS_S, EngineProcess
from core.engine.connection import SocketConnection
from core.engine.death import suspects_in
from core.engine.wedge import Voice, WedgeWatch


class OwnedEngine(SocketConnection):
    """The owner's connection. process: spawned already."""

    linger_ms = 0

    def __init__(self, process: EngineProcess) -> None:
        super().__init__(process.address)
        self._process = process
        self._wedge_timeout_s = 0.0
        self._utility_timeout_s = 0.0

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self._process.pid

    async def start(self, start: wire.StartEngine, timeout_s: float) -> EngineReady:
        """Hand the process its configuration and wait until the engine is up. If that fails, the process is ended.

        timeout_s: seconds until the start is given up.
        Raises what `greet` raises, EngineDeadError when the process ends first or time is up.
        """
        try:
            ready = await self._await_start(start, timeout_s)
        except BaseException:
            try:
                await self._process.stop(0.0)
            finally:
                self.close()
            raise
        self._process.forget_output()
        self._wedge_timeout_s = start.config.wedge_timeout_s
        self._utility_timeout_s = start.config.utility_timeout_s
        return ready

    async def until_ended(self, voice: Voice) -> EngineDeadError:
        """As above; a process that hangs is ended."""
        watching: asyncio.Task[None] | None = None
        if self._wedge_timeout_s:
            watch = WedgeWatch(self._process, voice, self._wedge_timeout_s, self._utility_timeout_s)
            watching = asyncio.create_task(watch.run())
        try:
            await self._process.wait()
        finally:
            if watching is not None:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
        with contextlib.suppress(TimeoutError):  # all that it has sent is received before its end is seen
            await asyncio.wait_for(super().until_ended(voice), LAST_WORDS_S)
        return self._process.dead_error()

    def suspects(self) -> tuple[int, ...]:
        """As above."""
        return suspects_in(self._process.last_step())

    async def leave(self, grace_s: float) -> None:
        """Ask the engine to end, wait `grace_s` seconds, kill it if it does not; remove its sockets."""
        if grace_s > 0:
            await self.post(wire.encode(Shutdown()))
        await self._process.stop(grace_s)

    def give_up(self) -> None:
        """End the process at once and remove its sockets."""
        self._process.kill()
        self._process.remove_directory()

    async def _send_greeting(self, parts: list[bytes]) -> None:
        await super()._send_greeting(parts)
        self._process.configured.set()

    async def _await_start(self, start: wire.StartEngine, timeout_s: float) -> EngineReady:
        greeting = asyncio.create_task(self.greet(start))
        exit_ = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait({greeting, exit_}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if exit_.done() and not greeting.done():
                await asyncio.wait({greeting}, timeout=LAST_WORDS_S)
            if greeting.done():
                return greeting.result()
            if exit_.done():
                raise EngineDeadError(f"The engine process ended while it started: it {self._process.obituary()}")
            raise EngineDeadError(f"The engine was not ready after {timeout_s:g} s; it was stopped.")
        finally:
            greeting.cancel()
            exit_.cancel()
            await asyncio.gather(greeting, exit_, return_exceptions=True)
