"""An engine process that hangs.

Owns: `WedgeWatch`: when a step lasts too long, or an engine between steps says nothing, and the end of such a process. A call
that is known to take long, such as a sleep, has a limit of its own.
Never does: start another one. Called by: the owner's connection, while the engine runs.

Time is counted in looks, so that an owner that was stopped together with its engine, or has slept, does not take that time
for the engine's.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import Protocol

from core.engine.utilities import LONG
from core_supervision.breadcrumbs import InUtility, LastStep
from core_supervision.link.connection import Voice

logger = logging.getLogger(__name__)

FACTOR = 10.0
"""How many times longer than predicted a step may last."""
UTILITY_S = 1800.0
"""How long a utility that is known to take long may last, by default: as long as a start may."""
UNKNOWN_S = 600.0
"""How long a step may last before anything is known of steps."""
LOOKS = 10
"""Looks in the shortest time that is a wedge."""
LONGEST_LOOK_S = 1.0
LAST_WORDS_S = 2.0
"""What an engine that is told to end has for writing its stacks to the log."""


class Watched(Protocol):
    """A process that is watched. wedge: why it is being killed."""

    wedge: str | None

    def last_step(self) -> LastStep | None:
        """The last step that it began."""
        ...

    def utility(self) -> InUtility | None:
        """The utility that it is in between two steps."""
        ...

    def abort(self) -> None:
        """Have it write its stacks to the log and end."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...


class WedgeWatch:
    """The watch over one process.

    floor_s:   seconds that any step, and any silence between steps, may last.
    utility_s: seconds that a utility which is known to take long may last; 0.0: any time.
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
        """Look until the process hangs, and kill it. To be cancelled when it has ended."""
        pause_s = min(self._floor_s / LOOKS, LONGEST_LOOK_S)
        before = time.monotonic()
        while True:
            await asyncio.sleep(pause_s)
            now = time.monotonic()
            wedge = self.look(min(now - before, 2.0 * pause_s))
            before = now
            if wedge is not None:
                await self._end(wedge)
                return

    def look(self, elapsed_s: float) -> str | None:
        """Why the process hangs, a clause; None when it does not. elapsed_s: since the last look."""
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
        """The engine owes us nothing. What it owes others is not known here, so it is asked now and then."""
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
            if 2.0 * silence_s > self._floor_s:  # it may have nothing to tell, such as while a grammar is prepared
                self._voice.ping()
            return None
        return f"between two steps it has said nothing for {silence_s:.1f} s (--engine-wedge-timeout)"

    async def _end(self, wedge: str) -> None:
        logger.error("The engine hangs: %s. It is killed; the stacks of its threads follow.", wedge)
        self._process.wedge = wedge
        self._process.abort()
        await asyncio.sleep(LAST_WORDS_S)
        self._process.kill()
