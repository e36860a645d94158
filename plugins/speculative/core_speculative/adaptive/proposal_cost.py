"""Cost model of proposing drafts, learned from the steps that did it.

Owns: `ProposalCost`: seconds by the number of drafts. Never does: measure time; the worker does. Called by: the choice of
drafts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RATE = 0.2
"""Fraction of the error that one step corrects in the seconds of its number of drafts."""

MOST_SURPRISE = 2.0
"""Limit of the ratio of one step to the present estimate; longer times are clipped to it."""


class ProposalCost:
    """Seconds of proposing in one step, owned by `DraftEvidence`. most: maximum drafts of a sequence in a step."""

    __slots__ = ("_known", "_numbers", "_seconds")

    def __init__(self, most: int) -> None:
        self._numbers = np.arange(most + 1)
        self._known: dict[int, float] = {}
        self._seconds = np.zeros(most + 1)

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Seconds by the largest number of drafts of any sequence, [most + 1]; 0.0 for none.

        Numbers that were never tried are interpolated; beyond the largest one that was, time grows in proportion.
        """
        return self._seconds

    def observe(self, num_drafts: int, seconds: float) -> None:
        """Learn that proposing up to `num_drafts` for each sequence took `seconds` in a step."""
        before = self._known.get(num_drafts)
        if before is None:
            self._known[num_drafts] = seconds
        else:
            # Only from above: a machine that pauses makes a step too long, nothing makes it too short.
            seconds = min(seconds, MOST_SURPRISE * before)
            self._known[num_drafts] = before + RATE * (seconds - before)
        tried = [0, *sorted(self._known)]
        found = [0.0, *(self._known[number] for number in tried[1:])]
        self._seconds = np.interp(self._numbers, tried, found)
        beyond = self._numbers > tried[-1]
        self._seconds[beyond] = found[-1] * self._numbers[beyond] / tried[-1]
