"""The engine process as its parent sees it.

Owns: spawning, the tail of its output, its end, its socket directory. Never does: talk to it. Called by: the ZMQ client.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

TAIL_BYTES = 4096
LAST_LINES = 8
LAST_WORDS_S = 0.2
MAX_SOCKET_DIRECTORY = 80
"""Longest directory whose socket path fits the 107 bytes of a unix address."""


class EngineProcess:
    """A running child, which may be spawned before there is an event loop. What it prints goes on to our standard error;
    the last bytes are kept for the cause of death."""

    def __init__(self, process: subprocess.Popen[bytes], directory: Path) -> None:
        self._process = process
        self._directory = directory
        self._tail = b""
        self._ended: Future[None] = Future()
        self._relayed: Future[None] = Future()
        for work, done in ((process.wait, self._ended), (self._relay_output, self._relayed)):
            done.set_running_or_notify_cancel()  # nobody who waits can cancel it from here on
            threading.Thread(target=_settle, args=(work, done), name="engine-child", daemon=True).start()

    @classmethod
    def spawn(cls, executor: str | None = None) -> EngineProcess:
        """Start the engine process; `executor` names another executor class, MODULE:CLASS."""
        directory = make_socket_directory()
        command = [sys.executable, "-P", "-m", "core.engine.process", "--address", socket_address(directory)]
        if executor is not None:
            command += ["--executor", executor]
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, env=child_environment()
            )
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        return cls(process, directory)

    @property
    def address(self) -> str:
        """Where the client binds and the process connects."""
        return socket_address(self._directory)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    async def wait(self) -> None:
        """Until the process has ended and all it printed was read."""
        await asyncio.wrap_future(self._ended)
        await asyncio.wait({asyncio.wrap_future(self._relayed)}, timeout=LAST_WORDS_S)

    def forget_output(self) -> None:
        """What was printed so far is of no interest for the cause of death: the start went well."""
        self._tail = b""

    def obituary(self) -> str:
        """How the process ended, and the last lines that it printed."""
        code = self._process.returncode
        if code is None:
            how = "still runs"
        elif code < 0:
            how = f"was killed by signal {-code} ({signal.Signals(-code).name})"
        else:
            how = f"exited with code {code}"
        lines = self._tail.decode(errors="replace").strip().split("\n")[-LAST_LINES:]
        words = [line.rpartition("\r")[2] for line in lines if line.strip()]
        return how + ("; its last words:\n" + "\n".join(words) if words else "")

    def kill(self) -> None:
        """End the process at once; harmless when it has ended."""
        self._process.kill()

    def discard(self) -> None:
        """End the process at once, and remove its socket directory; harmless after `stop`."""
        self.kill()
        self._ended.result()
        self._close_input()
        self.remove_directory()

    async def stop(self, grace_s: float) -> None:
        """Wait `grace_s` seconds for the end, then terminate, then kill; remove the socket directory."""
        try:
            for end, patience in ((None, grace_s), (self._process.terminate, 2.0), (self._process.kill, 2.0)):
                if end is not None:
                    end()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.wrap_future(self._ended), patience)
                    break
        finally:
            self._close_input()
            await asyncio.wait({asyncio.wrap_future(self._relayed)}, timeout=LAST_WORDS_S)
            self.remove_directory()

    def remove_directory(self) -> None:
        """Remove the socket directory; harmless when it is gone."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _close_input(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _relay_output(self) -> None:
        stream = self._process.stdout
        while stream is not None and (chunk := os.read(stream.fileno(), TAIL_BYTES)):
            self._tail = (self._tail + chunk)[-TAIL_BYTES:]
            sys.stderr.write(chunk.decode(errors="replace"))
            sys.stderr.flush()


def _settle(work: Callable[[], object], done: Future[None]) -> None:
    """Do something and say that it is done, however it ended."""
    try:
        work()
    finally:
        done.set_result(None)


def make_socket_directory() -> Path:
    """A new directory that only this user may enter, with a path short enough for a unix socket."""
    base = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="core-", dir="/tmp" if len(base) > MAX_SOCKET_DIRECTORY else base))


def socket_address(directory: Path) -> str:
    """The ipc address inside a socket directory."""
    return f"ipc://{directory}/engine.sock"


def child_environment() -> dict[str, str]:
    """Our environment, with this very `core` importable first: the child neither sees the working directory nor
    another package of the same name. numpy makes no threads of its own there: they would wait where ours compute."""
    environment = {"OPENBLAS_NUM_THREADS": "1", **os.environ}
    root = str(Path(__file__).resolve().parents[2])
    if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        inherited = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = root + (os.pathsep + inherited if inherited else "")
    return environment
