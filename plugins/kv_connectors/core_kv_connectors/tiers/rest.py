"""Back-off after failures.

Owns: `Rest`. Never does: wait, or access the failing resource. Called by: the disk tier.
"""

from __future__ import annotations

import time

FIRST_S = 1.0
LONGEST_S = 60.0


class Rest:
    """A back-off of one second after a failure, doubled by each further one, up to a minute.

    num_failures: consecutive failures.
    """

    def __init__(self) -> None:
        self.num_failures = 0
        self._until = 0.0

    @property
    def remaining(self) -> float:
        """Return the seconds until the next try; 0 when one is allowed now."""
        return max(0.0, self._until - time.monotonic()) if self.num_failures else 0.0

    def begin(self) -> None:
        """Record a failure."""
        self._until = time.monotonic() + min(FIRST_S * 2 ** min(self.num_failures, 10), LONGEST_S)
        self.num_failures += 1

    def end(self) -> None:
        """Record a success."""
        self.num_failures = 0
