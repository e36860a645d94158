"""What proposing costs, learned from the steps in which it was done.

Owns: `ProposalCost`: seconds by the number of drafts. Never does: measure time; the worker does. Called by: the choice of
drafts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RATE = 0.2
"""How far one step corrects the seconds of its number of drafts."""

MOST_SURPRISE = 2.0
"""The factor by which one step may exceed what is known: what takes longer counts as that much."""


class ProposalCost:
    """Seconds of proposing in one step. most: drafts of a sequence in a step."""

    __slots__ = ("_known", "_numbers", "_seconds")

    def __init__(self, most: int) -> None:
        self._numbers = np.arange(most + 1)
        self._known: dict[int, float] = {}
        self._seconds = np.zeros(most + 1)

    @property
    def seconds(self) -> NDArray[np.float64]:
        """[most + 1]: by the most drafts that any sequence may have; none take no time.

        A number that was never tried lies between those that were; beyond the largest of them, time grows with it.
        """
        return self._seconds

    def observe(self, num_drafts: int, seconds: float) -> None:
        """In a step, proposing at most `num_drafts` for each sequence took so long."""
        before = self._known.get(num_drafts)
        if before is None:
            self._known[num_drafts] = seconds
        else:
            seconds = min(seconds, MOST_SURPRISE * before)
            self._known[num_drafts] = before + RATE * (seconds - before)
        tried = [0, *sorted(self._known)]
        found = [0.0, *(self._known[number] for number in tried[1:])]
        self._seconds = np.interp(self._numbers, tried, found)
        beyond = self._numbers > tried[-1]
        self._seconds[beyond] = found[-1] * self._numbers[beyond] / tried[-1]
