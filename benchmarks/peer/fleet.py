"""The processes of a run: started when first needed, standing still while another one runs, all ended at the end.

Owns: workers and servers, and room in memory for them. Never does: choose what they run. Called by: the session.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from benchmarks.peer.contenders import Contender, Launches
from benchmarks.peer.environment import PeerError
from benchmarks.peer.process import Launch, Worker
from benchmarks.startup import Server, ServerError, free_port

START_LIMIT_S = 600.0
SETTLE_S = 3.0
"""After an engine's start, for what it still does in the background, before the first thing that is asked of it."""
MEMORY_RESERVE = 4 << 30
"""Bytes that must be free before another engine starts; else the one idle for longest ends."""


class Fleet:
    """At most one of its engines runs at a time. logs: where each process writes."""

    def __init__(self, launches: Launches, logs: Path) -> None:
        self._launches, self._logs = launches, logs
        self._workers: dict[str, Worker] = {}
        self._servers: dict[str, Server] = {}
        logs.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def worker(self, name: str, launch: Launch) -> Iterator[Worker]:
        """The worker `name`, running; it stands still afterwards, and is ended when the body fails. Raises PeerError."""
        worker = self._workers.pop(name, None)
        if worker is None:
            self._make_room()
            worker = Worker(launch, self._log(name), START_LIMIT_S)
            time.sleep(SETTLE_S)
        else:
            worker.resume()
        try:
            yield worker
        except BaseException:
            worker.stop()
            raise
        worker.pause()
        self._workers[name] = worker  # last in the order: used most recently

    def start_server(self, contender: Contender) -> Server:
        """A new server, not yet kept. Raises PeerError."""
        self._make_room()
        port = free_port()
        launch = self._launches.server(contender, port)
        server = Server(
            launch.command,
            port,
            environment=launch.environment,
            start_limit_s=START_LIMIT_S,
            log=self.server_log(contender),
        )
        try:
            return server.__enter__()
        except (ServerError, OSError) as error:
            raise PeerError(str(error)) from error

    @contextmanager
    def server(self, contender: Contender) -> Iterator[Server]:
        """The contender's server, running; it stands still afterwards, and is ended when the body fails. Raises PeerError."""
        server = self._servers.pop(contender.name, None)
        if server is None:
            server = self.start_server(contender)
        else:
            server.resume()
        try:
            yield server
        except (ServerError, OSError) as error:
            server.stop()
            raise PeerError(str(error)) from error
        except BaseException:
            server.stop()
            raise
        server.pause()
        self._servers[contender.name] = server

    def server_log(self, contender: Contender) -> Path:
        """What the contender's server printed."""
        return self._log(f"{contender.name} server")

    def stop_workers(self) -> None:
        """End all workers: none is needed any more."""
        while self._workers:
            self._workers.popitem()[1].stop()

    def close(self) -> None:
        """End everything."""
        self.stop_workers()
        while self._servers:
            self._servers.popitem()[1].stop()

    def _log(self, name: str) -> Path:
        return self._logs / f"{name.replace(' ', '-').replace('/', '-').lower()}.log"

    def _make_room(self) -> None:
        while psutil.virtual_memory().available < MEMORY_RESERVE and (self._workers or self._servers):
            idle = self._workers or self._servers
            name = next(iter(idle))
            with suppress(ProcessLookupError):
                idle.pop(name).stop()
