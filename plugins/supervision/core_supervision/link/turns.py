"""Fair shares of an event loop for tasks that always find more to do.

Owns: `Turns`. Never does: know what a task does. Called by: readers of messages.

Reading a message that is already there does not suspend the task. So a task that handles messages more slowly than they arrive
blocks all other tasks until the last of them, unless it yields.
"""

from __future__ import annotations

import asyncio
import time

TURN_S = 0.02


class Turns:
    """The turns of one task."""

    def __init__(self) -> None:
        self._until = 0.0

    async def give_way(self) -> None:
        """Yield to other tasks if this one may have been running for more than `TURN_S` seconds."""
        if time.monotonic() > self._until:
            await asyncio.sleep(0)
            self._until = time.monotonic() + TURN_S
