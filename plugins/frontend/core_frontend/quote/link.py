"""The speed at which pages of keys and values come from another engine.

Owns: `Link`, an average that is learned from transfers. Never does: move a page, or choose one. Called by: the router of
prompts (`core_apis.prefill`), and the moves of requests between the engines of a group.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

FIRST_SECONDS_A_BYTE: Final = 1e-9
"""Before the first transfer: 1 GB/s. Too high a guess costs one prompt some time; too low a one would never be corrected."""
NEW_SHARE: Final = 0.3
"""Weight of the latest transfer in the average."""
FORGET_S: Final = 60.0
"""Seconds after which half of a bad experience is forgotten, so that a link that was slow once is tried again."""


class Link:
    """The speed at which the pages of one server come. clock: returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds_a_byte = FIRST_SECONDS_A_BYTE
        self._at = clock()

    def seconds(self, num_bytes: int) -> float:
        """Return the expected seconds of a transfer."""
        return num_bytes * self._present()

    def observe(self, num_bytes: int, seconds: float) -> None:
        """Learn from a transfer."""
        if num_bytes > 0:
            self._seconds_a_byte = (1 - NEW_SHARE) * self._present() + NEW_SHARE * max(seconds, 0.0) / num_bytes
            self._at = self._clock()

    def _present(self) -> float:
        excess = self._seconds_a_byte - FIRST_SECONDS_A_BYTE
        if excess <= 0.0:
            return self._seconds_a_byte
        return FIRST_SECONDS_A_BYTE + excess * math.exp2((self._at - self._clock()) / FORGET_S)
