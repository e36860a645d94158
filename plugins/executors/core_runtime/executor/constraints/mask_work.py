"""Time limits for grammars while answers are generated.

Owns: the time that all grammars may take in the engine's steps, and the error message of a sequence which takes more.
Never does: know a backend. Called by: `core_runtime.executor.constraints.grammars`, around every call of a matcher.

Some grammars have masks that take longer with each token (`s ::= s s | "a"`). A backend cannot be interrupted in the middle
of a mask, but the time of one mask predicts that of the next, so a sequence ends before its masks hold up the others' steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from core.api.structured_outputs import FIELD
from core_runtime.sampling.state import MaskError

Clock = Callable[[], float]

SLOW_S: Final = 0.002
"""Seconds above which a mask counts as slow; usual ones take 0.01 to 0.5 ms."""
SINGLE_S: Final = 0.05
"""Maximum seconds of one mask."""
BANK_S: Final = 0.3
"""Maximum seconds that slow masks of all sequences may take in a burst."""
SHARE: Final = 0.1
"""Share of the engine's time that slow masks may take in the long run."""


class MaskBudget:
    """Time budget of the slow masks of all sequences together; it refills as time passes.

    clock: wall time in seconds. busy: processor time of the calling thread in seconds, which load on the machine does
        not lengthen.
    """

    def __init__(self, clock: Clock = time.perf_counter, busy: Clock = time.thread_time) -> None:
        self.clock = clock
        self.busy = busy
        self._left = BANK_S
        self._filled_at = clock()

    def spend(self, seconds: float) -> bool:
        """Spend time on a slow mask. Returns False when the budget did not cover it."""
        now = self.clock()
        self._left = min(BANK_S, self._left + SHARE * (now - self._filled_at)) - seconds
        self._filled_at = now
        if self._left >= 0.0:
            return True
        self._left = 0.0  # the sequence ends, so its overdraft is not charged to the others
        return False


class MaskWork:
    """Measures the masks of one sequence. budget: shared by all sequences."""

    __slots__ = ("_begin", "_budget", "_busy", "_is_slow")

    def __init__(self, budget: MaskBudget) -> None:
        self._budget = budget
        self._is_slow = False
        self._begin = 0.0
        self._busy = 0.0

    def begin(self) -> None:
        """Start measuring one call of the matcher."""
        if self._is_slow:
            self._busy = self._budget.busy()
        self._begin = self._budget.clock()

    def end(self) -> None:
        """Stop measuring. Raises MaskError when the sequence has to end."""
        budget = self._budget
        if not self._is_slow:
            # Reading a thread's own clock takes 1.4 µs, so it is used only after a mask that was slow by wall time.
            self._is_slow = budget.clock() - self._begin > SLOW_S
            return
        seconds = budget.busy() - self._busy
        self._is_slow = seconds > SLOW_S
        if self._is_slow and (seconds > SINGLE_S or not budget.spend(seconds)):
            raise MaskError(
                f"{FIELD} takes too much work: one mask of its grammar took {seconds * 1000:.0f} ms of processor time, and "
                f"masks may take at most {SINGLE_S * 1000:.0f} ms each and {SHARE:.0%} of the engine's time together; write a "
                "grammar in which each text has one reading, such as `s ::= t | t s` in place of `s ::= s s | t`."
            )
