"""Limits on the work and memory of one chat template rendering, and the error when it exceeds them.

Owns: the allowance of a rendering, its errors, and `ThreadLimits`, which enforces it in any process.
Never does: render, or limit a single operation (`core_tokens.chat.template_operations` does).
Called by: `core_tokens.chat.chat_template`; `core_apis.prepare.render_limits`, which replaces `ThreadLimits` in a helper
process.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from core.api.errors import RequestError

WORK_SECONDS = 0.6
"""CPU time allowed for any rendering. A conversation of 100 messages takes 3 ms; compiling the longest template, 60 ms.
"""
MESSAGE_SECONDS = 0.0002
"""CPU time added for each message, tool and document, which take 10 to 30 µs each."""
CHARACTERS_A_SECOND = 4_000_000
MEMORY_BYTES = 64 << 20
"""Memory allowed for any rendering, in addition to its inputs."""
BYTES_A_CHARACTER = 16
"""Memory added per input character: four bytes each in the pieces, in the whole text, and in two copies by the
template.
"""
MAX_DEPTH = 16
POLL_SECONDS = 0.05
REPEAT_SECONDS = 0.25
"""CPU time after which the exception is raised again, because destructors swallow exceptions."""
LINGER_SECONDS = 1.0
"""How long the watching thread stays after the last rendering, so that a batch of conversations starts only one thread.
"""

Method = TypeVar("Method", bound=Callable[..., Any])


class Allowance(NamedTuple):
    """The limits of one rendering. seconds: CPU time. num_bytes: memory."""

    seconds: float
    num_bytes: int


class WorkSpent(BaseException):
    """Raised inside a rendering when its work allowance is used up; not an Exception, so that a filter's `except
    Exception` cannot catch it.
    """


class Limits(Protocol):
    """A way to enforce the allowance of renderings."""

    def held(self, allowance: Allowance) -> AbstractContextManager[None]:
        """Enforce the allowance inside the context; does nothing inside another such context. Raises WorkSpent,
        MemoryError.
        """


class HasLimits(Protocol):
    """An object whose methods may be `limited`."""

    @property
    def limits(self) -> Limits:
        """Return the limits that apply to the object's methods."""


def limited(method: Method) -> Method:
    """Enforce on a method the allowance that follows from its arguments, and reject what exceeds it. Raises
    RequestError.
    """

    @functools.wraps(method)
    def within(self: HasLimits, *args: Any, **kwargs: Any) -> Any:
        allowance = allowance_for(*args, *kwargs.values())
        try:
            with self.limits.held(allowance):
                return method(self, *args, **kwargs)
        except WorkSpent:
            raise too_much_work(allowance) from None
        except MemoryError:
            raise too_much_memory(allowance) from None

    return cast(Method, within)


def allowance_for(*values: Any) -> Allowance:
    """Return the allowance of a rendering with these inputs: lists of messages, tools and documents, variables."""
    num_rows = sum(len(value) for value in values if isinstance(value, list | tuple))
    num_characters = sum(_characters(value, MAX_DEPTH) for value in values)
    seconds = WORK_SECONDS + MESSAGE_SECONDS * num_rows + num_characters / CHARACTERS_A_SECOND
    return Allowance(seconds, MEMORY_BYTES + BYTES_A_CHARACTER * num_characters)


def too_much_work(allowance: Allowance) -> RequestError:
    """Return the error for a rendering that takes too long."""
    return RequestError(
        f"The chat template was stopped after {allowance.seconds:.2g} s of computing, the limit for these messages; send "
        "fewer or shorter ones, or start the server with another --chat-template.",
        param="messages",
        code="too_much_work",
    )


def too_much_memory(allowance: Allowance) -> RequestError:
    """Return the error for a rendering that takes too much memory."""
    return RequestError(
        f"The chat template was stopped because it takes more than {allowance.num_bytes >> 20} MiB of memory, the limit for "
        "these messages; send fewer or shorter ones, or start the server with another --chat-template.",
        param="messages",
        code="too_much_work",
    )


class ThreadLimits:
    """Work limits for renderings in any thread: a watcher thread measures their CPU time and stops them.

    Only Python code can be stopped this way; a single operation of the interpreter cannot. Memory is not counted, since
    a process limit would affect everything else in the process. The sandbox limits both per operation.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[int, float] = {}
        self._is_watching = False

    @contextmanager
    def held(self, allowance: Allowance) -> Iterator[None]:
        """Enforce the allowance inside the context, as `Limits.held` defines."""
        ident = threading.get_ident()
        if ident in self._watched:
            yield
            return
        with self._lock:
            self._watched[ident] = time.thread_time() + allowance.seconds
            if not self._is_watching:
                self._is_watching = True
                threading.Thread(target=self._watch, name="template-watch", daemon=True).start()
        try:
            yield
        finally:
            self._let_go(ident)

    def _let_go(self, ident: int) -> None:
        """Stop watching this thread. An exception that was sent but has not arrived must not arrive later. An exception
        that was sent and has not arrived must not arrive later.

        Cancelling it (`PyThreadState_SetAsyncExc` with NULL) would leave the interpreter's pending-work flag set, and a
        function under `sys.setprofile` would then never begin (CPython 3.11).
        """
        while True:
            try:
                with self._lock:
                    self._watched.pop(ident, None)
                for _ in range(2):  # the interpreter raises a pending exception at a loop's backward jump
                    pass
                return
            except WorkSpent:  # it has arrived here, where it does no harm
                continue

    def _watch(self) -> None:
        last = time.monotonic()
        while True:
            time.sleep(POLL_SECONDS)
            now = time.monotonic()
            with self._lock:
                if self._watched:
                    last = now
                elif now - last > LINGER_SECONDS:
                    self._is_watching = False
                    return
                for ident, end in self._watched.items():
                    if time.clock_gettime(time.pthread_getcpuclockid(ident)) > end:
                        self._watched[ident] = end + REPEAT_SECONDS
                        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(WorkSpent))


def _characters(value: Any, depth: int) -> int:
    """Return the number of characters of all texts in a value, to the depth of conversations."""
    if isinstance(value, str):
        return len(value)
    if depth and isinstance(value, Mapping):
        return sum(_characters(item, depth - 1) for item in value.values())
    if depth and isinstance(value, list | tuple):
        return sum(_characters(item, depth - 1) for item in value)
    return 0
