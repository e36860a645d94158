"""How much work and memory one rendering of a chat template may take, and the refusal when it takes more.

Owns: the allowance of a rendering, its refusals, and `ThreadLimits`, which holds renderings to it in any process.
Never does: render, or bound one operation (`core_tokens.template_operations` does).
Called by: `core_tokens.chat_template`; `core_apis.render_limits`, which replaces `ThreadLimits` in a helper process.
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
"""Processor time of any rendering. A conversation of 100 messages takes 3 ms; to compile the longest template, 60 ms."""
MESSAGE_SECONDS = 0.0002
"""Processor time added for each message, tool and document, which take 10 to 30 µs each."""
CHARACTERS_A_SECOND = 4_000_000
MEMORY_BYTES = 64 << 20
"""Memory of any rendering, besides that of the values which it is given."""
BYTES_A_CHARACTER = 16
"""Memory added for each character given: four bytes in the pieces, in the whole text, and in two copies by the template."""
MAX_DEPTH = 16
POLL_SECONDS = 0.05
REPEAT_SECONDS = 0.25
"""Processor time after which an exception is raised again: destructors swallow what is raised in them."""
LINGER_SECONDS = 1.0
"""How long the watching thread stays after the last rendering, so that a batch of conversations starts one thread."""

Method = TypeVar("Method", bound=Callable[..., Any])


class Allowance(NamedTuple):
    """The limits of one rendering. seconds: of processor time. num_bytes: of memory."""

    seconds: float
    num_bytes: int


class WorkSpent(BaseException):
    """The allowance of work is spent. Raised inside a rendering, so no `except Exception` of a filter may hold it up."""


class Limits(Protocol):
    """A way to hold renderings to their allowance."""

    def held(self, allowance: Allowance) -> AbstractContextManager[None]:
        """Hold the block to it; inside another such block, do nothing. Raises WorkSpent, MemoryError."""


class HasLimits(Protocol):
    """An object whose methods may be `limited`."""

    @property
    def limits(self) -> Limits:
        """Theirs."""


def limited(method: Method) -> Method:
    """Hold a method to the allowance that follows from its arguments, and refuse what is too much. Raises RequestError."""

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
    """The allowance of a rendering that is given these values: lists of messages, tools and documents, variables."""
    num_rows = sum(len(value) for value in values if isinstance(value, list | tuple))
    num_characters = sum(_characters(value, MAX_DEPTH) for value in values)
    seconds = WORK_SECONDS + MESSAGE_SECONDS * num_rows + num_characters / CHARACTERS_A_SECOND
    return Allowance(seconds, MEMORY_BYTES + BYTES_A_CHARACTER * num_characters)


def too_much_work(allowance: Allowance) -> RequestError:
    """The refusal of a rendering that takes too long."""
    return RequestError(
        f"The chat template was stopped after {allowance.seconds:.2g} s of computing, the limit for these messages; send "
        "fewer or shorter ones, or start the server with another --chat-template.",
        param="messages",
        code="too_much_work",
    )


def too_much_memory(allowance: Allowance) -> RequestError:
    """The refusal of a rendering that takes too much memory."""
    return RequestError(
        f"The chat template was stopped because it takes more than {allowance.num_bytes >> 20} MiB of memory, the limit for "
        "these messages; send fewer or shorter ones, or start the server with another --chat-template.",
        param="messages",
        code="too_much_work",
    )


class ThreadLimits:
    """Limits of work for renderings in any thread: another thread watches their processor time and stops them.

    Python code alone can be stopped so; one operation of the interpreter cannot, nor is memory counted, since a limit of the
    process would end whatever else it does. The sandbox bounds both, operation by operation.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[int, float] = {}
        self._is_watching = False

    @contextmanager
    def held(self, allowance: Allowance) -> Iterator[None]:
        """See `Limits`."""
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
        """Stop watching this thread. An exception that was sent and has not arrived must not arrive later.

        Taking it back (`PyThreadState_SetAsyncExc` with NULL) would leave the interpreter's flag of pending work set, and
        then a function under `sys.setprofile` never begins (CPython 3.11).
        """
        while True:
            try:
                with self._lock:
                    self._watched.pop(ident, None)
                for _ in range(2):  # the interpreter raises what was sent when a loop jumps back
                    pass
                return
            except WorkSpent:  # it arrived here
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
    """Characters of all texts in a value, as deep as conversations go."""
    if isinstance(value, str):
        return len(value)
    if depth and isinstance(value, Mapping):
        return sum(_characters(item, depth - 1) for item in value.values())
    if depth and isinstance(value, list | tuple):
        return sum(_characters(item, depth - 1) for item in value)
    return 0
