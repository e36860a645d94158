"""The engine process as its parent sees it.

Owns: spawning, the tail of its output, its end and the cause of it. Never does: talk to it. Called by: the ZMQ client.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future

from core.api.errors import EngineDeadError
from core.processes import child_environment, python_command
from core_supervision import breadcrumbs
from core_supervision.breadcrumbs import InUtility, LastStep
from core_supervision.death import Death, death_of, how_ended
from core_supervision.link.shared_file import SharedFiles
from core_supervision.link.socket_directory import SocketDirectory
from core_supervision.oom_kills import count_oom_kills

TAIL_BYTES = 4096
LAST_LINES = 8
LAST_WORDS_S = 0.2
KILL_S = 2.0


class EngineProcess:
    """A running child, which may be spawned before there is an event loop. What it prints goes on to our standard error;
    the last bytes are kept for the cause of death.

    configured: set when it has been sent its configuration; from then on its parent has time for other things.
    files: that the process has inherited, ours from now on; None: none, or they were given back.
    wedge: why it is being killed, once it has hung: a clause.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        directory: SocketDirectory,
        files: SharedFiles | None = None,
    ) -> None:
        self._process = process
        self._directory = directory
        self.configured = asyncio.Event()
        self.files = files
        self.wedge: str | None = None
        self._last_step: LastStep | None = None
        self._num_oom_kills = count_oom_kills()
        self._tail = b""
        self._ended: Future[None] = Future()
        self._relayed: Future[None] = Future()
        works = ((process.wait, self._ended), (self._relay_output, self._relayed))
        for work, done in works:
            done.set_running_or_notify_cancel()  # from here on, a waiting task that is cancelled does not cancel it
            thread = threading.Thread(target=_run_and_report, args=(work, done), name="engine-child", daemon=True)
            thread.start()

    @classmethod
    def spawn(cls, executor: str | None = None, files: SharedFiles | None = None) -> EngineProcess:
        """Start the engine process.

        executor: names another executor class, MODULE:CLASS.
        files:    those of a process before, which stay the caller's; None: new ones.
        """
        directory = SocketDirectory()
        inherited: SharedFiles | None = None
        pipe = subprocess.PIPE
        try:
            inherited = SharedFiles.new() if files is None else files.again()
            command = python_command("core.engine.process", "--address", directory.address)
            command += ["--breadcrumbs", str(inherited.steps)]
            if executor is not None:
                command += ["--executor", executor]
            process = subprocess.Popen(
                command,
                stdin=pipe,
                stdout=pipe,
                stderr=subprocess.STDOUT,
                env=child_environment(),
                pass_fds=inherited.all,
                process_group=0,  # Ctrl-C at a terminal is for us: it must not interrupt the start of the engine
            )
        except BaseException:
            directory.remove()
            if inherited is not None:
                inherited.close()
            raise
        return cls(process, directory, inherited)

    @property
    def address(self) -> str:
        """The address that the process binds and clients connect to."""
        return self._directory.address

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process is no more."""
        return self._ended.done()

    async def wait(self) -> None:
        """Until the process has ended and all it printed was read."""
        await asyncio.wrap_future(self._ended)
        await asyncio.wait({asyncio.wrap_future(self._relayed)}, timeout=LAST_WORDS_S)

    def forget_output(self) -> None:
        """Drop the output so far: the start went well, so it says nothing about a later death."""
        self._tail = b""

    def obituary(self) -> str:
        """How the process ended, and the last lines that it printed."""
        return self._with_last_words(how_ended(self._process.returncode))

    def dead_error(self) -> EngineDeadError:
        """The death of a process that was not to end, with its cause, its last words and those that it was computing."""
        death = self.death()
        return EngineDeadError(self._with_last_words(death.sentence), cause=death.cause, suspects=death.suspects)

    def _with_last_words(self, how: str) -> str:
        text = self._tail.decode(errors="replace").strip()
        lines = text.split("\n")[-LAST_LINES:]
        words = []
        for line in lines:
            if line.strip():
                _, _, shown = line.rpartition("\r")
                words.append(shown)
        if not words:
            return how
        return f"{how.removesuffix('.')}; its last words:\n" + "\n".join(words)

    def last_step(self) -> LastStep | None:
        """The last step that the process began; None when it has not told of any. After the end too."""
        if self.files is not None:
            self._last_step = breadcrumbs.read(self.files.steps)
        return self._last_step

    def utility(self) -> InUtility | None:
        """The utility that the process is in between two steps; None: in none."""
        return None if self.files is None else breadcrumbs.read_utility(self.files.steps)

    def death(self) -> Death:
        """Why the process has ended."""
        num_oom_kills = count_oom_kills() - self._num_oom_kills
        return death_of(self._process.returncode, self.last_step(), wedge=self.wedge, num_oom_kills=num_oom_kills)

    def abort(self) -> None:
        """Have a process that hangs, or is stopped, write its threads' stacks to the log and end."""
        for number in (signal.SIGABRT, signal.SIGCONT):
            self._process.send_signal(number)

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
        """Wait `grace_s` seconds for the end, then kill; remove the socket directory."""
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.wrap_future(self._ended), grace_s)
            self.kill()
            await asyncio.wait({asyncio.wrap_future(self._ended)}, timeout=KILL_S)
        finally:
            self._close_input()
            await asyncio.wait({asyncio.wrap_future(self._relayed)}, timeout=LAST_WORDS_S)
            self.remove_directory()

    def remove_directory(self) -> None:
        """Remove the socket directory, and give the shared files back; the last step stays known. May be called twice."""
        self._directory.remove()
        self.last_step()
        if self.files is not None:
            self.files.close()
            self.files = None

    def _close_input(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _relay_output(self) -> None:
        """Read to the end even when writing fails: an engine whose output is not read blocks."""
        stream = self._process.stdout
        if stream is None:
            return
        with stream:
            while chunk := os.read(stream.fileno(), TAIL_BYTES):
                whole = self._tail + chunk
                self._tail = whole[-TAIL_BYTES:]
                with contextlib.suppress(OSError, ValueError):  # a full disk, a reader that is gone, a closed stream
                    print(chunk.decode(errors="replace"), end="", file=sys.stderr, flush=True)


def _run_and_report(work: Callable[[], object], done: Future[None]) -> None:
    """Run `work` and resolve `done`, however it ended."""
    try:
        work()
    finally:
        done.set_result(None)
