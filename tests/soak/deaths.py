"""Which connections a death may have cut.

Owns: how many deaths have begun and are over. Never does: kill. Called by: the site (kills), the clients (ask whether their
connection may have been cut).

A process that was killed goes on accepting connections for a moment: 40 ms passed between SIGKILL and the end of an API
process on a busy machine of two processors. So a request may be cut by a death that had begun before it.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Deaths:
    """The deaths of processes that hold connections of clients."""

    def __init__(self) -> None:
        self._begun = 0
        self._over = 0
        self._lock = threading.Lock()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Around a death: from before the signal until the process has gone."""
        with self._lock:
            self._begun += 1
        try:
            yield
        finally:
            with self._lock:
                self._over += 1

    def mark(self) -> int:
        """To be taken before a connection is made."""
        return self._over

    def may_have_cut(self, mark: int) -> bool:
        """Whether a death has begun since `mark` was taken, or was not over then."""
        return self._begun > mark
