"""Scheduling of full garbage collections in a server.

Owns: the collector's thresholds in a process that serves, and the task that collects between requests. Never does:
collect in the engine's process, which makes hardly any objects while it steps. Called by: the service, once it serves.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

PAUSE_S = 0.5
USUAL = 10
"""Number of collections of the middle generation after which Python looks at all objects."""
PATIENCE = 200
"""Number of those collections that wait for a moment without requests.

Each stands for about 7,000 new objects that have not been freed.
"""


async def collect_between_requests(num_running: Callable[[], int]) -> None:
    """Run full collections only while no request runs, or when there has been none for long. Never returns.

    A collection during 200 requests took 20 to 26 ms of the event loop, in whichever callback happened to make the
    object that crossed the threshold; without requests it takes 1 to 3 ms.
    """
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, PATIENCE)
    while True:
        await asyncio.sleep(PAUSE_S)
        if gc.get_count()[2] >= USUAL and not num_running():
            gc.collect()
