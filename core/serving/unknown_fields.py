"""Fields of requests that are left out because nobody knows them: told once each.

Owns: `UnknownFields`. Never does: decide what is left out (the bodies do). Called by: routes of APIs whose clients add fields.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

logger = logging.getLogger("core.serving")

MOST = 200
LONGEST = 64
"""Names that are remembered, and characters of each that are told: clients may send anything."""


class UnknownFields:
    """The names that were told, for each path."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()

    def note(self, path: str, names: Iterable[str]) -> None:
        """Tell names that were left out of a request to `path`, unless they were told before."""
        new: list[str] = []
        for name in names:
            short = name[:LONGEST]
            if len(self._told) < MOST and (path, short) not in self._told:
                self._told.add((path, short))
                new.append(repr(short))
        if new:
            logger.warning(
                "Left out of requests to %s, since this server does not know them: %s.", path, ", ".join(new)
            )
