"""The settings of a helper process, and its start.

Owns: `Lane`, the command and the socket. Never does: send anything. Called by: `core_supervision.helpers.helper`; whoever
starts a process ahead, or runs another protocol on the socket.
"""

from __future__ import annotations

import socket
import subprocess
import threading
from dataclasses import dataclass
from typing import NamedTuple

from core.processes import child_environment, python_command


@dataclass(frozen=True, slots=True)
class Lane:
    """The settings of one helper process.

    module:       run in the process.
    task:         what it does, as the end of "the process that".
    job_seconds:  time limit of one job, after which the process is killed.
    load_seconds: see `HelperLink`.
    idle_seconds: time without a job after which the process is ended; None: it stays, and is replaced at once when it
        wants to be.
    most_jobs:    maximum number of jobs that are sent to it at once.
    niceness:     of the process, beyond this one's.
    max_attempts: maximum number of processes that one job is sent to: each has several jobs, and any of them may have
        ended it.
    max_ended:    maximum number of processes that may end while they work on one job; a process may also have died long
        before.
    fatal_exit:   exit code that only the job at work can have caused; it is not tried again.
    """

    module: str
    task: str
    job_seconds: float
    load_seconds: float | None = None
    idle_seconds: float | None = None
    most_jobs: int = 1
    niceness: int = 0
    max_attempts: int = 8
    max_ended: int = 2
    fatal_exit: int | None = None


class Spawned(NamedTuple):
    """A process that waits for its first message, and this end of its socket."""

    process: subprocess.Popen[bytes]
    connection: socket.socket

    def end(self) -> None:
        """End a process that was not needed."""
        self.process.kill()
        self.connection.close()


def spawn(lane: Lane) -> Spawned:
    """Start the process of a lane, which waits for its first message. Raises OSError.

    A thread waits for the process, so that a helper that ends while it is idle does not stay a zombie.
    """
    spawned = spawn_on_socket(lane.module, str(lane.niceness), output=subprocess.DEVNULL)
    threading.Thread(target=spawned.process.wait, name="helper-wait", daemon=True).start()
    return spawned


def spawn_on_socket(module: str, *words: str, fds: tuple[int, ...] = (), output: int | None = None) -> Spawned:
    """Start a module with its end of a socket as the first word. Raises OSError.

    fds: descriptors that it inherits. output: its standard output and error; None: those of this process.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(
                python_command(module, str(theirs.fileno()), *words),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,  # Ctrl-C must reach only the parent, which ends the process.
                env=child_environment(),
                pass_fds=(theirs.fileno(), *fds),
            )
        except BaseException:
            ours.close()
            raise
    return Spawned(process, ours)
