"""Threads of a reader that may not die of what it reads.

Owns: `no_thread_dies`. Never does: start or stop a thread. Called by: targets whose readers have threads.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_thread_dies() -> Iterator[None]:
    """Raise AssertionError from the first exception that ended a thread meanwhile."""
    died: list[threading.ExceptHookArgs] = []
    before = threading.excepthook
    threading.excepthook = died.append
    try:
        yield
    finally:
        threading.excepthook = before
    if died:
        name = died[0].thread.name if died[0].thread else "unknown"
        raise AssertionError(f"the thread {name} ended") from died[0].exc_value
