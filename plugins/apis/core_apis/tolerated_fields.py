"""Request fields that some APIs tolerate although nobody here knows them: each is told once.

Owns: `ToleratedFields`. Never does: decide which fields those are. Called by: the routes of APIs whose clients add fields.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

logger = logging.getLogger("core_apis")

MOST_NAMES = 100
LONGEST_NAME = 60
"""Characters; both bound the memory and the log lines that clients can cause."""


class ToleratedFields:
    """One for each server."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()

    def tell(self, path: str, names: Iterable[str]) -> None:
        """Log the names that were never seen before in requests to `path`."""
        for name in names:
            short = name[:LONGEST_NAME]
            if (path, short) in self._told or len(self._told) >= MOST_NAMES:
                continue
            self._told.add((path, short))
            logger.warning("Requests to %s have a field %r, which is not known here and changes nothing.", path, short)
