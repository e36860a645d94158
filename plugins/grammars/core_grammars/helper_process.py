"""The common parts of our helper processes: their start, and the framing of their messages.

Owns: the socket between parent and helper, framed messages, a refusal as a message. Never does: know a helper's task, or wait.
Called by: both ends of the helpers that prepare requests and that compile grammars.

Each message consists of its length (uint32, little-endian) and its content.
"""

from __future__ import annotations

import resource
import socket
import subprocess
import threading
from io import BufferedRWPair
from typing import Self

import msgspec

from core.api.errors import RequestError
from core.processes import child_environment, python_command

HEADER_BYTES = 4


class Refusal(msgspec.Struct, array_like=True):
    """A RequestError as a message. details: text for the log, when the fault is ours; empty otherwise."""

    message: str
    param: str | None
    status: int
    code: str | None
    details: str = ""

    @classmethod
    def of(cls, error: RequestError) -> Self:
        """Make the message for an error."""
        return cls(str(error), error.param, error.status, error.code)

    def as_error(self) -> RequestError:
        """Return the error that the message carries, without `details`."""
        return RequestError(self.message, param=self.param, status=self.status, code=self.code)


def spawn_helper(module: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start `python -P -m MODULE FD`; return the process and our end of the socket.

    A thread waits for the process, so that a helper that ends while it is idle does not stay a zombie.
    """
    ours, theirs = socket.socketpair()
    command = python_command(module, str(theirs.fileno()))
    with theirs:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C must reach only the parent, which ends the helper.
                env=child_environment(),
                pass_fds=(theirs.fileno(),),
            )
        except BaseException:
            ours.close()
            raise
    threading.Thread(target=process.wait, name="helper-wait", daemon=True).start()
    return process, ours


def header(num_bytes: int) -> bytes:
    """Return the header of a message of `num_bytes`."""
    return num_bytes.to_bytes(HEADER_BYTES, "little")


def write_message(stream: BufferedRWPair, data: bytes) -> None:
    """Write a framed message and flush the stream; blocks while the other end does not read."""
    stream.write(header(len(data)))
    stream.write(data)
    stream.flush()


def read_message(stream: BufferedRWPair) -> bytes:
    """Read the next message; blocks until it is complete, and returns an empty one at the end of the stream."""
    head = stream.read(HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        return b""
    num_bytes = int.from_bytes(head, "little")
    return stream.read(num_bytes)


def peak_memory() -> int:
    """Return the peak resident memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
