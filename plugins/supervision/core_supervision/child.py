"""The engine process from its parent's side.

Owns: spawning, the tail of its output, its end and the cause of it. Never does: send messages to it. Called by: the source and
the connection of engines.
"""

from __future__ import annotations

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
from core_supervision.death import Death, death_of, how_ended
from core_supervision.link.shared_file import SharedFiles
from core_supervision.link.socket_directory import SocketDirectory
from core_supervision.oom_kills import count_oom_kills
from core_supervision.watch import breadcrumbs
from core_supervision.watch.breadcrumbs import InUtility, LastStep

TAIL_BYTES = 4096
LAST_LINES = 8
LAST_WORDS_S = 0.2
KILL_S = 2.0


class EngineProcess:
    """A running engine process, owned by its parent. It may be spawned before there is an event loop.

    Its output is relayed to this process's standard error; the last bytes are kept for the cause of death.

    configured: set when its configuration was sent; from then on its parent has time for other work.
    files: files that the process has inherited; owned by this object. None: none, or closed.
    wedge: why it is killed after it hung, as a clause; None otherwise.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        directory: SocketDirectory,
        files: SharedFiles | None = None,
    ) -> None:
        # Imported once the process runs: its imports are the longest part of a start, and asyncio takes 0.1 s here.
        import asyncio

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
            done.set_running_or_notify_cancel()  # so that the cancellation of a waiting task does not cancel the future
            thread = threading.Thread(target=_run_and_report, args=(work, done), name="engine-child", daemon=True)
            thread.start()

    @classmethod
    def spawn(cls, executor: str | None = None, files: SharedFiles | None = None) -> EngineProcess:
        """Start the engine process.

        executor: MODULE:CLASS of an executor that is no plugin; None: the default plugin, imported at once; empty: the
                  plugin that the configuration names, imported only then.
        files:    files of an earlier process, which the caller still owns; None: new ones.
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
                process_group=0,  # Ctrl-C at a terminal is for this process: it must not interrupt the start of the engine
            )
        except BaseException:
            directory.remove()
            if inherited is not None:
                inherited.close()
            raise
        return cls(process, directory, inherited)

    @property
    def address(self) -> str:
        """The address that the process binds and to which clients connect."""
        return self._directory.address

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._ended.done()

    async def wait(self) -> None:
        """Wait until the process has ended and its output was read."""
        import asyncio

        await asyncio.wrap_future(self._ended)
        await asyncio.wait({asyncio.wrap_future(self._relayed)}, timeout=LAST_WORDS_S)

    def forget_output(self) -> None:
        """Drop the output so far: after a successful start it does not explain a later death."""
        self._tail = b""

    def obituary(self) -> str:
        """Return how the process ended, with the last lines of its output."""
        return self._with_last_words(how_ended(self._process.returncode))

    def dead_error(self) -> EngineDeadError:
        """Return the error of an unexpected end, with its cause, the last lines of output and the sequences being computed."""
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
        """Return the last step that the process began, also after its end; None when it has recorded none."""
        if self.files is not None:
            self._last_step = breadcrumbs.read(self.files.steps)
        return self._last_step

    def utility(self) -> InUtility | None:
        """Return the utility that the process is executing between two steps, or None."""
        return None if self.files is None else breadcrumbs.read_utility(self.files.steps)

    @property
    def num_end_requests(self) -> int:
        """How often somebody else has asked the process to end (SIGTERM), since its engine runs."""
        return 0 if self.files is None else breadcrumbs.read_end_requests(self.files.steps)

    def death(self) -> Death:
        """Determine why the process has ended."""
        num_oom_kills = count_oom_kills() - self._num_oom_kills
        return death_of(self._process.returncode, self.last_step(), wedge=self.wedge, num_oom_kills=num_oom_kills)

    def abort(self) -> None:
        """Have a hanging or stopped process write its threads' stacks to the log and end."""
        for number in (signal.SIGABRT, signal.SIGCONT):
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process; does nothing when it has ended."""
        self._process.kill()

    def discard(self) -> None:
        """Kill the process, wait for its end and remove its socket directory; does nothing after `stop`."""
        self.kill()
        self._ended.result()
        self._close_input()
        self.remove_directory()

    async def stop(self, grace_s: float) -> None:
        """Wait `grace_s` seconds for the end, then kill; remove the socket directory."""
        import asyncio

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
        """Remove the socket directory and close the shared files; the last step stays known. May be called twice."""
        self._directory.remove()
        self.last_step()
        if self.files is not None:
            self.files.close()
            self.files = None

    def _close_input(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _relay_output(self) -> None:
        """Relay output until the end, even when writing fails: an engine whose output is not read blocks."""
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
