"""The requests of one API key at other servers of this machine, as its share of the queue counts them.

Owns: which columns belong to which class of requests, and the form of times. Never does: refuse. Called by: `QueueLimit`.
"""

from __future__ import annotations

import time

from core_frontend.queue.common import Column, CommonCounts


class CommonOfKey:
    """One key's requests of one class; implements `core_frontend.queue.share.CommonShare`."""

    def __init__(self, counts: CommonCounts, key: int, *, flex: bool) -> None:
        self._counts = counts
        self._key = key
        self._first = Column.FLEX_AT_ONCE if flex else Column.AT_ONCE

    @property
    def at_once(self) -> int:
        """Return the requests under way elsewhere."""
        return self._counts.others(self._key, self._column(Column.AT_ONCE))

    @property
    def waiting(self) -> int:
        """Return the requests that wait elsewhere."""
        return self._counts.others(self._key, self._column(Column.WAITING))

    @property
    def tokens(self) -> int:
        """Return the prompt tokens that wait elsewhere."""
        return self._counts.others(self._key, self._column(Column.TOKENS))

    def publish(self, at_once: int, waiting: int, tokens: int, end_s: float, begin_s: float) -> None:
        """Tell the others our counts."""
        values = (at_once, waiting, tokens, int(end_s * 1e3), int(begin_s * 1e3))
        for place, value in enumerate(values):
            self._counts.set(self._key, Column(self._first + place), value)

    def seconds(self, *, until_end: bool) -> float | None:
        """Return the seconds until a request elsewhere probably ends, or begins; None: there is none."""
        found = self._counts.soonest(self._key, self._column(Column.END if until_end else Column.BEGIN))
        return None if found is None else max(0.0, found / 1e3 - time.monotonic())

    def forget_dead(self) -> None:
        """Leave out what servers that have ended had published."""
        self._counts.forget_dead()

    def _column(self, column: Column) -> Column:
        return Column(self._first + column)
