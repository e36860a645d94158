"""The parent's side of the helper process that compiles grammars.

Owns: its start on first use, one grammar at a time, its termination when a grammar takes too long or too much memory.
Never does: compile (`core_grammars.compile_process` is the other end), or cache. Called by: `core_grammars.compiler`,
from a thread.

Compilation runs third-party code on untrusted input, so it gets its own process: a hang, a crash or exhausted memory
ends with it.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
import threading
import time
from io import BufferedRWPair

import msgspec

from core.api.errors import RequestError
from core.api.structured_outputs import FIELD, CompiledGrammar
from core_grammars.compile_process import Answer, Job, Start
from core_grammars.helper_process import Refusal, read_message, spawn_helper, write_message

logger = logging.getLogger("core.grammars")

START_SECONDS = 60.0
"""Time limit for starting the process and loading a backend, on a busy machine."""


class CompileHelper:
    """A compile helper with at most one process. Used by one thread at a time, except `close`.

    start: its first message.
    timeout: seconds that all backends together may take for one grammar.
    """

    def __init__(self, start: Start, timeout: float) -> None:
        self._start = start
        self._timeout = timeout
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._stream: BufferedRWPair | None = None
        self._answers = msgspec.msgpack.Decoder(Answer)
        self._closed = False

    def compiled(self, job: Job) -> CompiledGrammar | Refusal:
        """Compile one grammar, or return the backends' objections; blocks the calling thread meanwhile.

        Raises RequestError for a grammar that takes too long or kills the process, and when no process can be started.
        """
        answer = self._asked(job)
        if answer is None:  # the process had exited while idle
            answer = self._asked(job)
        if answer is None:
            raise self._unavailable()
        if answer.last:
            self._end()
        if answer.compiled is not None:
            return answer.compiled
        assert answer.refusal is not None
        if answer.refusal.details:
            logger.error("A grammar backend failed.\n%s", answer.refusal.details)
        return answer.refusal

    def close(self) -> None:
        """Terminate the process for good, even in the middle of a grammar."""
        self._closed = True
        self._end()

    def _asked(self, job: Job) -> Answer | None:
        """Return the answer; None if no process accepted the job. Raises RequestError when the process died on it."""
        has_begun = False
        left = self._timeout  # time left for all backends' work on the grammar; loading them does not count
        begin = time.monotonic()
        deadline = begin + START_SECONDS
        try:
            stream = self._begin()
            write_message(stream, msgspec.msgpack.encode(job))
            while True:
                answer = self._next(stream, deadline)
                if answer is None:
                    break
                if answer.compiled is not None or answer.refusal is not None:
                    return answer
                now = time.monotonic()
                left -= now - begin if has_begun else 0.0
                begin = now
                has_begun = not answer.loading
                deadline = now + (START_SECONDS if answer.loading else left)
        except TimeoutError:
            self._end()
            if has_begun:
                raise self._too_slow() from None
            raise self._unavailable() from None
        except (OSError, ValueError):  # the socket is closed, at either end: see `close`
            pass
        ending = self._end()
        if has_begun and not self._closed:
            raise self._ended(ending)
        return None

    def _begin(self) -> BufferedRWPair:
        """Return the stream to a running process, starting one if needed."""
        with self._lock:
            if self._closed:
                raise OSError("the helper was closed")
            if self._stream is None:
                self._process, self._socket = spawn_helper("core_grammars.compile_process")
                self._stream = self._socket.makefile("rwb")
                self._socket.settimeout(START_SECONDS)
                write_message(self._stream, msgspec.msgpack.encode(self._start))
            return self._stream

    def _next(self, stream: BufferedRWPair, deadline: float) -> Answer | None:
        """Return the next answer, None at the end. Raises TimeoutError."""
        assert self._socket is not None
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        payload = read_message(stream)
        return self._answers.decode(payload) if payload else None

    def _end(self) -> int | None:
        """Terminate the process, if there is one; returns its exit code."""
        with self._lock:
            process, self._process = self._process, None
            connection, self._socket = self._socket, None
            stream, self._stream = self._stream, None
        if process is None:
            return None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # unblocks a thread that is reading from it
            connection.close()
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)  # a process that exited by itself has a meaningful exit code
        process.kill()
        return process.wait()

    def _too_slow(self) -> RequestError:
        return RequestError(
            f"{FIELD} did not compile within {self._timeout:g} s (--structured-outputs-config.compile-timeout); simplify it.",
            param=FIELD,
            code="too_much_work",
        )

    def _ended(self, code: int | None) -> RequestError:
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        memory = self._start.compile_memory
        return RequestError(
            f"{FIELD} ended the process that compiles it ({how}): it takes more than {memory} bytes of memory "
            "(--structured-outputs-config.compile-memory), or is nested too deeply; simplify it.",
            param=FIELD,
            code="too_much_work",
        )

    def _unavailable(self) -> RequestError:
        return RequestError(
            "The process that compiles grammars does not start; try again, or ask without structured outputs.",
            param=FIELD,
            status=503,
            code="server_busy",
            retry_after=1,
        )
