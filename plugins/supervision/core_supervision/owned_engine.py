"""The connection of an engine's owner, which starts and ends the process.

Owns: `start_engine`; `OwnedEngine`: the start, the end, and watching the process in between. Never does: know requests.
Called by: the source of engines; `ZmqClient`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

import msgspec

from core.api.config import EngineConfig
from core.api.errors import EngineDeadError
from core.api.messages import EngineReady, Shutdown
from core.engine import wire
from core_supervision.child import LAST_WORDS_S, EngineProcess
from core_supervision.death import suspects_in
from core_supervision.link.connection import SocketConnection, Voice
from core_supervision.link.shared_file import SharedFiles
from core_supervision.link.zmq_client import ZmqClient
from core_supervision.watch.end_requests import tell_end_requests
from core_supervision.watch.wedge import WedgeWatch

START_TIMEOUT_S = 1800.0
KEEPER = "keep"
"""KV connector of `--keep-kv`."""


class OwnedEngine(SocketConnection):
    """The owner's connection to its engine process. process: already spawned; owned from now on."""

    linger_ms = 0

    def __init__(self, process: EngineProcess) -> None:
        super().__init__(process.address)
        self._process = process
        self.pid = process.pid
        self._wedge_timeout_s = 0.0
        self._utility_timeout_s = 0.0

    async def start(self, start: wire.StartEngine, timeout_s: float) -> EngineReady:
        """Send the process its configuration and wait until the engine is ready. If that fails, the process is ended.

        timeout_s: limit of the start in seconds.
        Raises what `greet` raises, and EngineDeadError when the process ends first or the time is up.
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
        """As in the base class; a process that hangs is killed, and `voice` learns when it is asked to end."""
        watching = [asyncio.create_task(tell_end_requests(self._process, voice))]
        if self._wedge_timeout_s:
            watch = WedgeWatch(self._process, voice, self._wedge_timeout_s, self._utility_timeout_s)
            watching.append(asyncio.create_task(watch.run()))
        try:
            await self._process.wait()
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
        with contextlib.suppress(TimeoutError):  # its messages are received before the socket reports its end
            await asyncio.wait_for(super().until_ended(voice), LAST_WORDS_S)
        return self._process.dead_error()

    def suspects(self) -> tuple[int, ...]:
        """Return the handles in the last record of the process's steps; none between two steps."""
        return suspects_in(self._process.last_step())

    async def leave(self, grace_s: float) -> None:
        """Send `Shutdown`, wait `grace_s` seconds, then kill the engine; remove its socket."""
        if grace_s > 0:
            await self.post(wire.encode(Shutdown()))
        await self._process.stop(grace_s)

    def give_up(self) -> None:
        """Kill the process and remove its socket."""
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


async def start_engine(
    config: EngineConfig,
    *,
    epoch: int = 0,
    executor: str | None = None,
    process: EngineProcess | None = None,
    timeout_s: float = START_TIMEOUT_S,
) -> ZmqClient:
    """Start an engine process and wait until it is ready. Its client owns it: `close` ends it.

    executor:  MODULE:CLASS of another executor than the default.
    process:   an already spawned process; None: spawn one.
    timeout_s: limit of the start in seconds.
    Raises UserError for a mistake in the configuration, PluginError when a plugin fails, EngineDeadError for anything else.
    """
    if process is None:
        process = EngineProcess.spawn(executor)
    if process.files is not None:
        config = _with_files(config, process.files)
    engine = OwnedEngine(process)
    log_level = logging.getLogger("core").getEffectiveLevel()
    ready = await engine.start(wire.StartEngine(epoch, config, log_level), timeout_s)
    return ZmqClient(engine, ready)


def _with_files(config: EngineConfig, files: SharedFiles) -> EngineConfig:
    """Return the configuration with the descriptors of the files that outlive an engine."""
    weights = files.weights if config.keep_weights is not None else None
    blocks = files.kv if KEEPER in config.plugins.kv_connectors else None
    return msgspec.structs.replace(
        config, weights_file=weights, kv_file=blocks, lasting_file=files.lasting, tensors_file=files.tensors
    )
