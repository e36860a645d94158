"""An engine without an HTTP server: `core serve MODEL --headless`.

Owns: the order of its start and end, and the exit code. Never does: answer HTTP requests. Called by: `core serve`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING

import uvloop

from core.api.errors import CoreError, EngineDeadError
from core_apis.processes.api_messages import EngineEvent
from core_apis.processes.supervised_engine import SupervisedEngine
from core_apis.remote.agreement import hello
from core_apis.remote.engine_link import EngineLink
from core_apis.server.lifetime import LinkError, close_engine, listen
from core_apis.server.stop_signals import StopSignals
from core_config.served.server_config import RemoteSettings
from core_observers.logging import setup_logging

if TYPE_CHECKING:
    from core_config.resolve import Resolution
    from core_supervision.child import EngineProcess

DRAIN_POLL_S = 0.05


def serve_engine(resolution: Resolution, process: EngineProcess, signals: StopSignals) -> int:
    """Run the engine until a signal (exit code 0), or until it dies for good or has no API server (1).

    process: of the engine, already spawned. Raises UserError and PluginError as the start of an engine does.
    """
    setup_logging(process="headless", config=resolution.server.log_config)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_run(resolution, process, signals))
            return 0
        except (EngineDeadError, LinkError) as error:
            subject = "the engine died: " if isinstance(error, EngineDeadError) else ""
            print(f"core serve: {subject}{error}", file=sys.stderr, flush=True)
            return 1
        finally:
            runner.close()  # the loop restores signal handlers when it closes
            signals.ignore()


async def _run(resolution: Resolution, process: EngineProcess, signals: StopSignals) -> None:
    assert resolution.server.remote is not None
    await EngineServer(resolution, resolution.server.remote).run(process, signals)


class EngineServer:
    """An engine and its link to an API server. resolution: of the engine. settings: the API server's address."""

    def __init__(self, resolution: Resolution, settings: RemoteSettings) -> None:
        self._resolution = resolution
        self._settings = settings
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._engine = SupervisedEngine(self._report, self._fail)
        self._link = EngineLink(settings, hello(resolution), self._engine.forgive)

    async def run(self, process: EngineProcess, signals: StopSignals) -> None:
        """Run until a signal. Any other end raises its error."""
        first, second = listen(signals)
        stopping = asyncio.ensure_future(first.wait())
        linking = asyncio.ensure_future(self._link.run())
        working = asyncio.ensure_future(self._start_and_fail(process))
        ends = (stopping, linking, working)
        last_word = "it was asked to end"
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if stopping not in done:
                done.pop().result()
            await self._drain(second)
        except CoreError as error:
            last_word = str(error)
            raise
        finally:
            self._engine.leave()
            self._link.say_goodbye(last_word)
            for task in ends:
                task.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
            await close_engine(self._engine, second)

    async def _start_and_fail(self, process: EngineProcess) -> None:
        """Start the engine, and wait for its end, which is raised as an error."""
        begin = time.perf_counter()
        started = await self._engine.start(self._resolution, process)
        if started is not self._resolution:
            self._resolution = started
            self._link.renew(hello(started))
        self._announce(begin)
        await self._failed

    async def _drain(self, hurry: asyncio.Event) -> None:
        """Let running requests end, for as long as a server would."""
        end = time.monotonic() + self._resolution.server.shutdown_timeout
        while self._engine.num_requests and time.monotonic() < end and not hurry.is_set():
            await asyncio.sleep(DRAIN_POLL_S)

    def _announce(self, begin: float) -> None:
        phases = [*self._engine.phases, ("total", time.perf_counter() - begin)]
        times = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in phases)
        name = self._resolution.engine.model.served_names[0]
        print(
            f"Engine of {name} for the API server at {self._settings.address}:{self._settings.port} ({times})",
            flush=True,
        )

    def _report(self, news: EngineEvent) -> None:
        self._link.tell(news)

    def _fail(self, error: CoreError) -> None:
        """Note that there will be no engine any more, and end with `error`."""
        if not self._failed.done():
            self._failed.set_exception(error)
