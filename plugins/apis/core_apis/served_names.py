"""The model names that a server answers to: those of its arguments, and those of a file that may change while it runs.

Owns: `ServedNames`: when the file is checked again, and the effect of a change. Never does: read the file itself
(`core_config.served.names_file` does), or know adapters: all these names are the base model. Called by: the preparation
of requests, in each process of its own, and the routes.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence

from core.api.errors import ConfigError
from core_config.served.names_file import read_names

logger = logging.getLogger("core_apis")

LOOK_S = 1.0
"""Seconds between two checks of the file."""

Stamp = tuple[int, int, int]


class ServedNames:
    """The names of one server. fixed: names that are always valid; answers report the first one.

    file: holds further names; None: there are none. A file that cannot be read changes nothing, and is logged once.
    """

    def __init__(self, fixed: Sequence[str], file: str | None = None) -> None:
        self._fixed = tuple(fixed)
        self._file = file
        self._names = self._fixed
        self._stamp: Stamp | None = None
        self._next_look = 0.0

    def now(self) -> tuple[str, ...]:
        """Return all current names."""
        if self._file is not None and time.monotonic() >= self._next_look:
            self._look(self._file)
        return self._names

    def _look(self, file: str) -> None:
        self._next_look = time.monotonic() + LOOK_S
        stamp = _stamp(file)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            further = read_names(file)
        except ConfigError as error:
            logger.error("%s The names that were known go on being served.", error)
            return
        self._names = tuple(dict.fromkeys([*self._fixed, *further]))


def _stamp(file: str) -> Stamp | None:
    """Return a value that differs after the file has changed; None: the file is not there."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
