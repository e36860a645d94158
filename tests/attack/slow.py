"""Callbacks of a server's event loops that took too long, as its log has them.

Owns: the form of that line. Never does: judge. Called by: the server that is attacked, the arena.
"""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from tests.attack.metronome import Metronome

LINE = re.compile(
    r"(?P<time>\d\d:\d\d:\d\d\.\d{3}) .*(?P<text>A callback took (?P<took>[\d.]+) ms of the event loop "
    r"\((?P<passed>[\d.]+) by the clock\).*)"
)


@dataclass(frozen=True, slots=True)
class SlowCallback:
    """One of them. took: seconds of its thread's processor clock. begin, end: seconds since the epoch."""

    text: str
    took: float
    begin: float
    end: float

    def own_seconds(self, metronome: Metronome) -> float:
        """What is left of its time without that in which the machine stood still."""
        return self.took - metronome.stood_still(self.begin, self.end)


def slow_callbacks(log: str, now: datetime) -> list[SlowCallback]:
    """All that a log names. Its lines have the time of day alone. now: when it was read, at most a day later."""
    return [_found(match, now) for line in log.splitlines() if (match := LINE.search(line))]


def _found(match: re.Match[str], now: datetime) -> SlowCallback:
    at = datetime.combine(now.date(), datetime.strptime(match["time"], "%H:%M:%S.%f").time())
    if at > now + timedelta(seconds=1):
        at -= timedelta(days=1)
    end = at.timestamp() + 0.001  # what the line's time leaves out
    return SlowCallback(match["text"], float(match["took"]) / 1000, end - float(match["passed"]) / 1000 - 0.002, end)
