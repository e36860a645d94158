"""Calls in forks of this process, each with a limit of time: a hang or crash there does no harm.

Owns: the forks, their output and their end. Never does: start threads, which a fork would not have. Called by: the helper
process of `core.plugin.rehearsal`.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from core.plugin.patience import Patience
from core.processes import ending

MOST_BYTES = 1 << 20
"""Bytes kept of a fork's answer and of its output; of longer ones, the end is kept."""


@dataclass(slots=True, eq=False)
class Fork:
    """A forked process with one call.

    answer: descriptor from which its answer is read.
    words:  descriptor from which its printed output is read.
    held:   bytes read so far from each of these descriptors.
    """

    pid: int
    answer: int
    words: int
    held: dict[int, bytes]

    @classmethod
    def of(cls, call: Callable[[], bytes]) -> Fork:
        """Start a process that answers with the result of `call`."""
        (answer, answer_out), (words, words_out) = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            _be_the_fork(call, answer_out, words_out)
        os.close(answer_out)
        os.close(words_out)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)  # Also done in the fork: either may run first, and `kill` needs the group.
        return cls(pid, answer, words, {answer: b"", words: b""})

    def read(self, stream: int) -> bool:
        """Read the available bytes of a stream; False at its end."""
        data = os.read(stream, 1 << 16)
        self.held[stream] = (self.held[stream] + data)[-MOST_BYTES:]
        return bool(data)

    def kill(self) -> None:
        """Kill the process with its whole process group, so that programs started by it end too."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> str:
        """Wait for the end of the process and return how it ended, with the last line of its output."""
        returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        # The rest of the output, as far as it is there: a process that the call started may never close the pipe.
        os.set_blocking(self.words, False)
        with contextlib.suppress(BlockingIOError):
            while self.read(self.words):
                pass
        return ending(returncode, self.held[self.words])


def wait_for(forks: Sequence[Fork], time_limit: float) -> set[Fork]:
    """Read the answers within `time_limit` seconds, as `Patience` counts them; kill and return the forks that are late."""
    patience = {fork: Patience(fork.pid, time_limit) for fork in forks}
    late = set(forks)
    with selectors.DefaultSelector() as selector:
        for fork in forks:
            for stream in fork.held:
                selector.register(stream, selectors.EVENT_READ, fork)
        while late and (left := max(patience[fork].left() for fork in late)) > 0:
            for key, _ in selector.select(left):
                fork = key.data
                if fork.read(key.fd):
                    continue
                selector.unregister(key.fd)
                # Only the end of `answer` counts: a process that the call started may keep the output open.
                if key.fd == fork.answer:
                    late.remove(fork)
    for fork in late:
        fork.kill()
    return late


def _be_the_fork(call: Callable[[], bytes], out: int, words: int) -> NoReturn:
    code = 1
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Not the parent's handler, which may raise SystemExit here.
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for stream in (1, 2):
            os.dup2(words, stream)
        with os.fdopen(out, "wb") as answer:
            answer.write(call())
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # The fork must not return into its parent's code, nor run its exit handlers.
