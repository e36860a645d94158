"""Several servers of one command, each with an engine and a port of its own: `--data-parallel-multi-port-external-lb`.

Owns: their start, their restart after a death, their end. Never does: answer requests, or start an engine. Called by: `core
serve`; a server that was started so calls `end_with_starter`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from core.api.config import RestartConfig
from core.processes import child_environment, lifeline, python_command
from core_apis.server.lifetime import ApiProcessError, listen
from core_frontend.group.member_config import CPU, member_config
from core_observers.logging import setup_logging
from core_supervision.revival import Reviver

if TYPE_CHECKING:
    from core_apis.server.stop_signals import StopSignals
    from core_config.resolve import Resolution
    from core_supervision.child import EngineProcess

logger = logging.getLogger(__name__)

WRONG_ARGUMENTS = 2
"""Exit code of a server that no further attempt would help."""


def serve_ports(resolution: Resolution, words: list[str], process: EngineProcess, signals: StopSignals) -> int:
    """Run the servers until a signal (exit code 0), or until one dies too often (1).

    words: of the command line. process: an engine's, already spawned, which is not used.
    """
    process.discard()
    setup_logging(process="servers", config=resolution.server.log_config)
    with asyncio.Runner() as runner:
        try:
            runner.run(SeveralServers(resolution, words).run(signals))
            return 0
        except ApiProcessError as error:
            print(f"core serve: {error}", file=sys.stderr, flush=True)
            return 1
        finally:
            runner.close()  # the loop restores signal handlers when it closes
            signals.ignore()


def end_with_starter() -> None:
    """Ask this server to end in good order when the command that has started it is gone: standard input ends then."""

    def wait() -> None:
        os.read(sys.stdin.fileno(), 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="starter", daemon=True).start()


class SeveralServers:
    """The servers of one command. words: of its command line."""

    def __init__(self, resolution: Resolution, words: list[str]) -> None:
        self._resolution = resolution
        self._words = words
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._ending = False

    async def run(self, signals: StopSignals) -> None:
        """Keep the servers running until a signal; a second one is passed on too. Raises ApiProcessError."""
        first, second = listen(signals)
        keepers = [asyncio.ensure_future(self._keep(each)) for each in range(self._resolution.server.num_servers)]
        stopping = asyncio.ensure_future(first.wait())
        hurrying = asyncio.ensure_future(second.wait())
        try:
            done, _ = await asyncio.wait((stopping, *keepers), return_when=asyncio.FIRST_COMPLETED)
            self._end()
            ended = asyncio.gather(*keepers, return_exceptions=True)
            await asyncio.wait((ended, hurrying), return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                self._end()
            await ended
            for keeper in done - {stopping}:
                keeper.result()
        finally:
            for task in (stopping, hurrying, *keepers):
                task.cancel()

    async def _keep(self, number: int) -> None:
        """Keep a server running. Raises ApiProcessError when it died too often, or cannot start."""
        rank = self._resolution.engine.data_parallel_rank + number
        reviver = Reviver(RestartConfig())
        while not self._ending:
            reviver.came_up()
            code = await self._run(number, rank)
            if self._ending:
                return
            sentence = f"The server of rank {rank} ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}"
            delay = None if code == WRONG_ARGUMENTS else reviver.delay()
            if delay is None:
                raise ApiProcessError(f"{sentence}; it is not started again.")
            logger.error("%s; it is started again.", sentence)
            await asyncio.sleep(delay)

    async def _run(self, number: int, rank: int) -> int:
        """Run a server to its end; returns its exit code."""
        words = [*self._words, "--data-parallel-rank", str(rank), *self._threads(number)]
        with lifeline() as descriptor:
            server = await asyncio.create_subprocess_exec(
                *python_command("core", "serve", *words),
                stdin=descriptor,
                process_group=0,  # Ctrl-C must reach only this process, which ends the server
                env=child_environment(),
            )
            self._running[number] = server
            if self._ending:
                self._end()
            code = await server.wait()
            del self._running[number]
            return code

    def _threads(self, number: int) -> list[str]:
        """Return the words that give a server its share of the processors."""
        shared: dict[str, Any] = member_config(self._resolution.engine, number).plugins.arguments.get(CPU, {})
        chosen = {name: shared[name] for name in ("threads", "thread_binding") if name in shared}
        return ["--platform-config", json.dumps(chosen)] if chosen else []

    def _end(self) -> None:
        """Ask all servers to end."""
        self._ending = True
        for server in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                server.terminate()
