"""Standard output and standard error that never block their writers.

Owns: `BestEffortStream` and its place as `sys.stdout` and `sys.stderr`. Never does: choose what is written, or raise
into the caller: a full disk, a closed pipe or a reader that has stopped reading costs lines, which are counted, never
an answer. Called by: `core serve` for the whole life of its process. (The engine process needs none of this: its output
is a pipe that this process always reads.)
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

CAPACITY = 1 << 20
"""Bytes that wait for a slow reader; output beyond them is dropped."""
DRAIN_SECONDS = 1.0
"""Maximum number of seconds that the end of the process waits for its output to be written."""


class BestEffortStream(io.TextIOBase):
    """A text stream over a file descriptor. `write` only stores the text in memory; a daemon thread writes it.

    Once writing works again, a line reports how many lines were dropped.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._changed = threading.Condition()
        self._waiting: list[bytes] = []
        self._held = 0  # bytes in `_waiting`
        self._left_out = 0  # lines dropped after the waiting ones
        self._busy = False
        threading.Thread(target=self._write_all, name="core-output", daemon=True).start()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Return the encoding of the output."""
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        """Return the error handler: characters without an encoding are escaped."""
        return "backslashreplace"

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor underneath."""
        return self._descriptor

    def isatty(self) -> bool:
        """Whether the output is a terminal."""
        return os.isatty(self._descriptor)

    def write(self, text: str) -> int:
        """Queue `text` for the thread. Never waits, and never raises because of anything outside this process."""
        data = text.encode(self.encoding, self.errors)
        with self._changed:
            if self._held + len(data) > CAPACITY:
                self._left_out += _lines(data)
            else:
                self._waiting.append(data)
                self._held += len(data)
                self._changed.notify_all()
        return len(text)

    def flush(self) -> None:
        """Do nothing: see `drain`."""

    def drain(self, timeout_s: float) -> None:
        """Wait until everything is written, at most `timeout_s` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._waiting or self._busy), timeout_s)

    def _write_all(self) -> None:
        lost = 0
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting)
                data = b"".join(self._waiting)
                left_out = self._left_out
                self._waiting = []
                self._held = 0
                self._left_out = 0
                # Set within the lock: `drain` must not return between this and the write.
                self._busy = True
            lost = self._put(data, lost) + left_out

    def _put(self, data: bytes, lost: int) -> int:
        """Write; return the number of lines dropped so far that no line has reported."""
        try:
            if lost:
                notice = b"(%d lines of this output were left out: they could not be written)\n" % lost
                _write(self._descriptor, notice)
                lost = 0
            _write(self._descriptor, data)
        except OSError:
            lost += _lines(data)
        return lost


def _lines(data: bytes) -> int:
    return max(1, data.count(b"\n"))


def _write(descriptor: int, data: bytes) -> None:
    """Write all of `data`, however long it takes."""
    while data:
        try:
            num_written = os.write(descriptor, data)
            data = data[num_written:]
        except BlockingIOError:  # another process has made the descriptor non-blocking
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()


@contextlib.contextmanager
def best_effort_output() -> Iterator[None]:
    """Replace `sys.stdout` and `sys.stderr` by streams that threads write; at the end they have a second for the rest."""
    stdout = sys.stdout
    stderr = sys.stderr
    fast_stdout = _best_effort(stdout)
    fast_stderr = _best_effort(stderr)
    sys.stdout = fast_stdout
    sys.stderr = fast_stderr
    try:
        yield
    finally:
        end = time.monotonic() + DRAIN_SECONDS
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, BestEffortStream):
                stream.drain(max(0.0, end - time.monotonic()))
        sys.stdout = stdout
        sys.stderr = stderr


def _best_effort(stream: TextIO) -> TextIO:
    with contextlib.suppress(OSError):  # its buffer cannot be written
        stream.flush()
    try:
        return BestEffortStream(stream.fileno())  # type: ignore[return-value]
    except io.UnsupportedOperation:  # no file: a program collects the output in memory
        return stream
