"""A worker process: asked over a pipe, paused while others run, ended by its own process group.

Owns: the pipe, its time limits, the signals. Never does: know what an engine is. Called by: the session.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peer.environment import PeerError

END_LIMIT_S = 15.0


@dataclass(frozen=True, slots=True)
class Launch:
    """A command, and what is added to the environment."""

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)


class Worker:
    """One engine. ready: its first answer, with version, import_seconds and load_seconds; start_seconds: spawn to then."""

    def __init__(self, launch: Launch, log: Path, start_limit_s: float) -> None:
        self._log = log
        self._buffer = b""
        start = time.perf_counter()
        with open(log, "wb") as stream:
            self._process = subprocess.Popen(
                launch.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                env=os.environ | launch.environment,
                start_new_session=True,
            )
        try:
            self.ready = self._answer(start_limit_s)
        except BaseException:
            self.stop()
            raise
        self.start_seconds = time.perf_counter() - start

    @property
    def pid(self) -> int:
        """Process id, which is also its process group."""
        return self._process.pid

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Send one request and wait for its answer. Raises PeerError: an error answer, the end, or the limit."""
        self._require_alive()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._require_alive()
        answer = self._answer(limit_s)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer

    def pause(self) -> None:
        """Stop all its processes where they are."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ask it to end, then end its process group; harmless when it has ended."""
        self.resume()
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            if self._process.poll() is None and self._process.stdin is not None:
                self._process.stdin.close()
                self._process.wait(END_LIMIT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def _answer(self, limit_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        descriptor, end = self._process.stdout.fileno(), time.perf_counter() + limit_s
        while b"\n" not in self._buffer:
            readable, _, _ = select.select([descriptor], [], [], max(0.0, end - time.perf_counter()))
            if not readable:
                raise PeerError(f"no answer within {limit_s:g} s")
            piece = os.read(descriptor, 1 << 20)
            if not piece:
                self._process.wait()
                self._require_alive()
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _require_alive(self) -> None:
        code = self._process.poll()
        if code is not None:
            raise PeerError(f"ended with {code}: {last_words(self._log)}")


def last_words(log: Path, characters: int = 300) -> str:
    """The last lines of a log file, in one line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-2:])[-characters:]
