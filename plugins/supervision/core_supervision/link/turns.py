"""Fair shares of an event loop for tasks that always find more to do.

Owns: `Turns`. Never does: know what a task does. Called by: those who read messages.

Reading a message that is there already suspends nobody. So whoever handles them more slowly than they come keeps all other
tasks waiting until the last of them, unless it gives way.
"""

from __future__ import annotations

import asyncio
import time

TURN_S = 0.02


class Turns:
    """Of one task."""

    def __init__(self) -> None:
        self._until = 0.0

    async def give_way(self) -> None:
        """Let others have their turn, if this task may have been running for long."""
        if time.monotonic() > self._until:
            await asyncio.sleep(0)
            self._until = time.monotonic() + TURN_S
