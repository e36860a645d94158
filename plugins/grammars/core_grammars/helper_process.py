"""The parts that helper processes of ours share: how they are started, and the form of their messages.

Owns: the socket between both, framed messages, a refusal as a message. Never does: know what a helper works on, or wait.
Called by: the helpers that prepare requests and that compile grammars, at both of their ends.

Each message is its length (uint32, little-endian) and its content.
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
    """A RequestError as a message. details: for the log, where the fault is ours."""

    message: str
    param: str | None
    status: int
    code: str | None
    details: str = ""

    @classmethod
    def of(cls, error: RequestError) -> Self:
        """The message of an error."""
        return cls(str(error), error.param, error.status, error.code)

    def as_error(self) -> RequestError:
        """The error again."""
        return RequestError(self.message, param=self.param, status=self.status, code=self.code)


def spawn_helper(module: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start `python -P -m MODULE FD`; the process, and our end of the socket.

    A thread waits for the process, so that one which ends while nobody uses it does not stay a zombie.
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
                process_group=0,  # a terminal's Ctrl-C is for its parent, which ends it
                env=child_environment(),
                pass_fds=(theirs.fileno(),),
            )
        except BaseException:
            ours.close()
            raise
    threading.Thread(target=process.wait, name="helper-wait", daemon=True).start()
    return process, ours


def header(num_bytes: int) -> bytes:
    """The header of a message of this many bytes."""
    return num_bytes.to_bytes(HEADER_BYTES, "little")


def write_message(stream: BufferedRWPair, data: bytes) -> None:
    """Send a message."""
    stream.write(header(len(data)))
    stream.write(data)
    stream.flush()


def read_message(stream: BufferedRWPair) -> bytes:
    """The next message; empty at the end."""
    head = stream.read(HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        return b""
    num_bytes = int.from_bytes(head, "little")
    return stream.read(num_bytes)


def peak_memory() -> int:
    """Most bytes that this process ever had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
