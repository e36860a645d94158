"""The child's side of a helper process: `python -P -m MODULE FD NICENESS`.

Owns: its loop, one job after the other until the parent closes the socket, and its end with the parent. Never does: wait
for anything else, or limit its own time (the parent ends it). Called by: the modules that run as helpers.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
from collections.abc import Callable
from io import BufferedRWPair
from typing import TypeVar

import msgspec

from core.processes import end_with_parent
from core_supervision.helpers.messages import Mark, header, read_message

T = TypeVar("T")


class Parent:
    """The process that gives this helper its jobs.

    grown_bytes: memory growth since the latest `settle` after which this process wants to be replaced.
    """

    def __init__(self, stream: BufferedRWPair, grown_bytes: int, niceness: int = 0) -> None:
        self._stream = stream
        self._grown_bytes = grown_bytes
        self._niceness = niceness
        self._settled_bytes = peak_memory()

    def first(self, kind: type[T]) -> T:
        """Return the message that sets this process up."""
        return msgspec.msgpack.decode(read_message(self._stream), type=kind)

    def settle(self) -> None:
        """Note that this process has loaded what it needs, and lower its priority.

        Not before: on a busy machine the first job would wait for seconds.
        """
        os.nice(self._niceness)
        self._niceness = 0
        self._settled_bytes = peak_memory()

    def tell(self, mark: Mark, content: bytes = b"") -> None:
        """Send a message."""
        self._stream.write(header(1 + len(content)) + bytes([mark]))
        self._stream.write(content)
        self._stream.flush()

    def serve(self, work: Callable[[memoryview], tuple[msgspec.Struct, bool]]) -> None:
        """Answer jobs until the parent hangs up, or this process has to be replaced.

        work: returns the answer to a job, and whether this process should be replaced.
        """
        is_last = False
        while not is_last and (payload := read_message(self._stream)):
            answer, is_last = work(memoryview(payload))
            del payload
            is_last = is_last or peak_memory() - self._settled_bytes > self._grown_bytes
            self.tell(Mark.LAST if is_last else Mark.ANSWER, msgspec.msgpack.encode(answer))


def run(serve: Callable[[Parent], None], grown_bytes: int) -> int:
    """Run this process as a helper; return its exit status."""
    descriptor, niceness = (int(word) for word in sys.argv[1:3])
    end_with_parent(descriptor)  # also in the middle of a job
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rwb") as stream:
        serve(Parent(stream, grown_bytes, niceness))
    return 0


def peak_memory() -> int:
    """Return the peak resident memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def address_space() -> int:
    """Return the current size of this process's address space, in bytes."""
    with open("/proc/self/statm", "rb", buffering=0) as file:
        return int(file.read(64).split()[0]) * resource.getpagesize()
