"""The engine process as its parent sees it.

Owns: spawning, the tail of its output, its end, its socket directory. Never does: talk to it. Called by: the ZMQ client.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import sysconfig
import tempfile
from pathlib import Path

TAIL_BYTES = 4096
LAST_LINES = 8
MAX_SOCKET_DIRECTORY = 80
"""Longest directory whose socket path fits the 107 bytes of a unix address."""


class EngineProcess:
    """A running child. What it prints goes on to our standard error; the last bytes are kept for the cause of death."""

    def __init__(self, process: asyncio.subprocess.Process, directory: Path) -> None:
        self._process = process
        self._directory = directory
        self._tail = b""
        self._relay = asyncio.create_task(self._relay_output())

    @classmethod
    async def spawn(cls, executor: str | None = None) -> EngineProcess:
        """Start the engine process; `executor` names another executor class, MODULE:CLASS."""
        directory = make_socket_directory()
        command = [sys.executable, "-P", "-m", "core.engine.process", "--address", socket_address(directory)]
        if executor is not None:
            command += ["--executor", executor]
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=child_environment(),
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
        await self._process.wait()
        await asyncio.wait({self._relay}, timeout=0.2)

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
        if self._process.returncode is None:
            self._process.kill()

    async def stop(self, grace_s: float) -> None:
        """Wait `grace_s` seconds for the end, then terminate, then kill; remove the socket directory."""
        try:
            for end, patience in ((None, grace_s), (self._process.terminate, 2.0), (self._process.kill, 2.0)):
                if end is not None:
                    end()
                try:
                    await asyncio.wait_for(self._process.wait(), patience)
                    break
                except TimeoutError:
                    continue
        except ProcessLookupError:
            pass
        finally:
            if self._process.stdin is not None:
                self._process.stdin.close()
            await asyncio.wait({self._relay}, timeout=0.2)
            self._relay.cancel()
            self.remove_directory()

    def remove_directory(self) -> None:
        """Remove the socket directory; harmless when it is gone."""
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _relay_output(self) -> None:
        stream = self._process.stdout
        while stream is not None and (chunk := await stream.read(TAIL_BYTES)):
            self._tail = (self._tail + chunk)[-TAIL_BYTES:]
            sys.stderr.write(chunk.decode(errors="replace"))
            sys.stderr.flush()


def make_socket_directory() -> Path:
    """A new directory that only this user may enter, with a path short enough for a unix socket."""
    base = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="core-", dir="/tmp" if len(base) > MAX_SOCKET_DIRECTORY else base))


def socket_address(directory: Path) -> str:
    """The ipc address inside a socket directory."""
    return f"ipc://{directory}/engine.sock"


def child_environment() -> dict[str, str]:
    """Our environment, with this very `core` importable first: the child neither sees the working directory nor
    another package of the same name."""
    environment = dict(os.environ)
    root = str(Path(__file__).resolve().parents[2])
    if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        inherited = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = root + (os.pathsep + inherited if inherited else "")
    return environment
