"""A filter against floods of the same log line: one per minute passes.

Owns: the rule which records count as the same, and their rate. Never does: format, since a suppressed record
should cost no more than a lookup. Called by: `core_observers.logging` and, in an engine process,
`core_observers.engine.flood_guard`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

INTERVAL_S = 60.0
MAX_KINDS = 256
"""Maximum number of kinds of records. While all of them are recent, the records of new kinds share one kind per logger and
level."""


@dataclass(slots=True)
class _Kind:
    since: float  # Time at which a record of this kind last passed.
    held_back: int = 0


class RepeatFilter(logging.Filter):
    """A filter that lets a warning or error pass once in `interval_s` seconds; the next one states how many did not pass.

    Records are of the same kind when logger, level, unformatted message and an exception's type and place are equal.
    """

    def __init__(self, interval_s: float = INTERVAL_S, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._interval_s = interval_s
        self._clock = clock
        self._lock = threading.RLock()  # Reentrant, since a signal handler may log.
        self._kinds: dict[int, _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether `record` passes; add the number of suppressed records to its message."""
        if record.levelno < logging.WARNING:
            return True
        now = self._clock()
        with self._lock:
            kind = self._find(record, now)
            age = now - kind.since
            held_back = kind.held_back
            if age < self._interval_s:
                kind.held_back += 1
                return False
            kind.since = now
            kind.held_back = 0
        if held_back:
            text = str(record.msg).rstrip()
            record.msg = f"{text} ({held_back} more like it in the last {age:.0f} s)"
        return True

    def _find(self, record: logging.LogRecord, now: float) -> _Kind:
        """Return the record's kind; a new kind is old enough for its first record to pass."""
        number = _kind_of(record)
        if number not in self._kinds and len(self._kinds) >= MAX_KINDS:
            self._forget_old(now)
            if len(self._kinds) >= MAX_KINDS:
                number = hash((record.name, record.levelno))
        return self._kinds.setdefault(number, _Kind(now - self._interval_s))

    def _forget_old(self, now: float) -> None:
        """Drop the kinds whose next record would pass anyway."""
        for number, kind in list(self._kinds.items()):
            if now - kind.since >= self._interval_s:
                del self._kinds[number]


def _kind_of(record: logging.LogRecord) -> int:
    error = record.exc_info[1] if record.exc_info else None
    place = None
    trace = error.__traceback__ if error is not None else None
    if trace is not None:
        while trace.tb_next is not None:
            trace = trace.tb_next
        place = (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
    words = record.msg if isinstance(record.msg, str) else type(record.msg)
    return hash((record.name, record.levelno, words, type(error), place))
