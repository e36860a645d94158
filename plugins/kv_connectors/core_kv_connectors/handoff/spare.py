"""The memory that pages of peers may take until they are in blocks.

Owns: `Spare`: a number of bytes. Never does: allocate. Called by: claims.
"""

from __future__ import annotations

import threading


class Spare:
    """`capacity` bytes, from which claims take some and give them back. Any thread may call it."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.num_taken = 0
        self._changed = threading.Condition()

    def take(self, num_bytes: int, timeout_s: float) -> bool:
        """Take bytes as soon as there are some; False, and no change, after `timeout_s` seconds."""
        with self._changed:
            has_room = self._changed.wait_for(lambda: self.num_taken + num_bytes <= self.capacity, timeout_s)
            if has_room:
                self.num_taken += num_bytes
            return has_room

    def give_back(self, num_bytes: int) -> None:
        """Return bytes."""
        with self._changed:
            self.num_taken -= num_bytes
            self._changed.notify_all()
