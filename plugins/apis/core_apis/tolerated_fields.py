"""Request fields that some APIs tolerate although this server does not know them. Each is logged once.

Owns: `ToleratedFields`. Never does: decide which fields those are. Called by: the routes of APIs whose clients add
fields.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

logger = logging.getLogger("core_apis")

MOST_NAMES = 100
LONGEST_NAME = 60
"""Maximum length of a logged name in characters.

Both limits bound the memory and the log lines that clients can cause.
"""


class ToleratedFields:
    """The tolerated fields that one server has seen."""

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
