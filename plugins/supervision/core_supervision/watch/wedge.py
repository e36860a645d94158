"""Detection of a hanging engine process.

Owns: `WedgeWatch`: when a step takes too long, or an engine between steps is silent, and the end of such a process. A call
that is known to take long, such as a sleep, has its own limit.
Never does: start another one. Called by: the owner's connection, while the engine runs.

Time is the sum of intervals between checks, each limited, so that an owner that was stopped together with its engine, or was
suspended, does not count that time as the engine's.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import Protocol

from core.engine.utilities import LONG
from core_supervision.link.connection import Voice
from core_supervision.watch.breadcrumbs import InUtility, LastStep

logger = logging.getLogger(__name__)

FACTOR = 10.0
"""Ratio of a step's duration to its prediction above which the engine counts as hanging."""
UTILITY_S = 1800.0
"""Default limit in seconds of a utility that is known to take long: the same as for a start."""
UNKNOWN_S = 600.0
"""Limit in seconds of a step without a prediction."""
LOOKS = 10
"""Number of checks within the shortest time that counts as hanging."""
LONGEST_LOOK_S = 1.0
LAST_WORDS_S = 2.0
"""Seconds that an aborted engine has for writing its stacks to the log."""


class Watched(Protocol):
    """The watched process. wedge: why it is killed; None otherwise."""

    wedge: str | None

    def last_step(self) -> LastStep | None:
        """Return the last step that it began."""
        ...

    def utility(self) -> InUtility | None:
        """Return the utility that it is executing between two steps."""
        ...

    def abort(self) -> None:
        """Have it write its stacks to the log and end."""
        ...

    def kill(self) -> None:
        """Kill the process."""
        ...


class WedgeWatch:
    """The watch over one process, run by its owner's connection.

    floor_s:   seconds that any step, and any silence between steps, may always last.
    utility_s: limit in seconds of a utility that is known to take long; 0.0: no limit.
    """

    def __init__(self, process: Watched, voice: Voice, floor_s: float, utility_s: float = UTILITY_S) -> None:
        self._process = process
        self._voice = voice
        self._floor_s = floor_s
        self._utility_s = utility_s
        self._mark: tuple[object, object] = (None, None)
        self._stalled_s = 0.0
        self._quiet_s = 0.0

    async def run(self) -> None:
        """Check until the process hangs, and kill it then. To be cancelled when the process has ended."""
        pause_s = min(self._floor_s / LOOKS, LONGEST_LOOK_S)
        before = time.monotonic()
        while True:
            await asyncio.sleep(pause_s)
            now = time.monotonic()
            # A longer interval means that this process did not run either, so that it is no evidence against the engine.
            wedge = self.look(min(now - before, 2.0 * pause_s))
            before = now
            if wedge is not None:
                await self._end(wedge)
                return

    def look(self, elapsed_s: float) -> str | None:
        """Return why the process hangs, as a clause; None when it does not. elapsed_s: seconds since the last check."""
        last = self._process.last_step()
        utility = self._process.utility()
        computing = last is not None and last.computing
        step = None if last is None else (last.number, last.end_s, last.computing)
        mark = (step, None if utility is None else utility.number)
        owes = computing or self._voice.silence_s > 0
        if mark != self._mark or not owes:
            self._mark = mark
            self._stalled_s = 0.0
            if not owes:
                self._ask_for_others(elapsed_s)
            return None
        self._stalled_s += elapsed_s
        if not computing:
            return self._judge_silence(utility)
        assert last is not None
        return self._judge_step(last)

    def _ask_for_others(self, elapsed_s: float) -> None:
        """Ping an engine that owes this client nothing now and then, because it may owe other clients something."""
        self._quiet_s += elapsed_s
        if self._voice.for_others and 2.0 * self._quiet_s >= self._floor_s:
            self._quiet_s = 0.0
            self._voice.ping()

    def _judge_step(self, last: LastStep) -> str | None:
        if math.isinf(last.predicted_s):
            if self._stalled_s < max(self._floor_s, UNKNOWN_S):
                return None
            return f"a step of {len(last.handles)} sequences has lasted for {self._stalled_s:.1f} s"
        if self._stalled_s < max(self._floor_s, FACTOR * last.predicted_s):
            return None
        return (
            f"a step of {len(last.handles)} sequences has lasted for {self._stalled_s:.1f} s, where "
            f"{last.predicted_s:.2f} s were expected (--engine-wedge-timeout)"
        )

    def _judge_silence(self, utility: InUtility | None) -> str | None:
        silence_s = min(self._stalled_s, self._voice.silence_s)
        if utility is not None and utility.name in LONG:
            limit_s = max(self._utility_s, self._floor_s)
            if not self._utility_s or self._stalled_s < limit_s:
                return None
            return f"the call {utility.name} has lasted for {self._stalled_s:.1f} s (--engine-utility-timeout)"
        if silence_s < self._floor_s:
            if 2.0 * silence_s > self._floor_s:  # it may have nothing to send, for example while a grammar is prepared
                self._voice.ping()
            return None
        return f"between two steps it has said nothing for {silence_s:.1f} s (--engine-wedge-timeout)"

    async def _end(self, wedge: str) -> None:
        logger.error("The engine hangs: %s. It is killed; the stacks of its threads follow.", wedge)
        self._process.wedge = wedge
        self._process.abort()
        await asyncio.sleep(LAST_WORDS_S)
        self._process.kill()
