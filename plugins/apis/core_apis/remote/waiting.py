"""The wait of one end of the link for the other.

Owns: `Waiting`: since when, when to log it, and when it has been too long. Never does: log too often, or connect.
Called by: both ends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

FIRST_LINE_S = 3.0
NEXT_LINE_S = 30.0


class Waiting:
    """The wait for the other end. whom: its name. patience_s: time limit. clock: seconds.

    trouble: the latest obstacle, a clause; empty: nothing is known.
    """

    def __init__(self, whom: str, patience_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.trouble = ""
        self._whom = whom
        self._patience_s = patience_s
        self._clock = clock
        self._since: float | None = None
        self._next_line = 0.0

    def begin(self) -> None:
        """Start the wait: the other end is gone from now on."""
        self._since = self._clock()
        self._next_line = self._since + FIRST_LINE_S
        self.trouble = ""

    def end(self) -> None:
        """End the wait: the other end is there."""
        self._since = None

    @property
    def is_overdue(self) -> bool:
        """Whether the wait has been longer than its limit."""
        return self._since is not None and self._clock() - self._since > self._patience_s

    def look(self, where: str, *, has_limit: bool = True) -> str | None:
        """Log a line if one is due. Return the final sentence once the wait has been too long.

        where: the address at which the other end is expected. has_limit: whether the wait ends at all.
        """
        if self._since is None:
            return None
        now = self._clock()
        waited = now - self._since
        why = f"; {self.trouble}" if self.trouble else ""
        if has_limit and self.is_overdue:
            return (
                f"No connection in {self._patience_s:g} s (--engine-connect-timeout): {self._whom} was expected {where}{why}. "
                "Check that both run with the same --data-parallel-address, --data-parallel-rpc-port and --engine-key-file."
            )
        if now >= self._next_line:
            self._next_line = now + NEXT_LINE_S
            rest = f", at most {self._patience_s - waited:.0f} s more" if has_limit else ""
            logger.warning("Waiting for %s %s for %.0f s%s%s.", self._whom, where, waited, rest, why)
        return None
