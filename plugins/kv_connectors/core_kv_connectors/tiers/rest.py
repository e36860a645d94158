"""Leaving alone what fails.

Owns: `Rest`. Never does: wait, or touch what it is about. Called by: the disk tier.
"""

from __future__ import annotations

import time

FIRST_S = 1.0
LONGEST_S = 60.0


class Rest:
    """After a failure nothing is tried for a second, after each further one twice as long, up to a minute.

    num_failures: in a row.
    """

    def __init__(self) -> None:
        self.num_failures = 0
        self._until = 0.0

    @property
    def remaining(self) -> float:
        """Seconds until the next try; 0 when one may be made now."""
        return max(0.0, self._until - time.monotonic()) if self.num_failures else 0.0

    def begin(self) -> None:
        """Something failed."""
        self._until = time.monotonic() + min(FIRST_S * 2 ** min(self.num_failures, 10), LONGEST_S)
        self.num_failures += 1

    def end(self) -> None:
        """Something worked."""
        self.num_failures = 0
