"""Scheduling of garbage collections in a server.

Owns: the collector's thresholds in a process that serves, and the task that collects. Never does: collect in the engine's
process, which makes hardly any objects while it steps. Called by: the service, once it serves.

The event loop stands still while garbage is collected, so no collection may look at much. Without requests there is not
much to look at. While requests run, collections are frequent, and what one has looked at is frozen: later ones look at
newer objects alone. Frozen objects are freed like any others, by their reference counts; only cycles among them stay.
All objects are looked at after many such collections, in an idle moment if there is one.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

PAUSE_S = 0.1
USUAL = 2
"""Number of collections of the middle generation after which garbage is collected; each stands for about 7,000 new objects
that have not been freed.
"""
TOO_MANY = 3
"""The same beside requests when the new objects are frozen unseen: they came from one large body, and a look at 35,000 of
them took 21 ms.
"""
LAST_RESORT = 200
"""The same for a server whose event loop is too busy even for this task."""
MOST_LEFT = 5_000
"""Collections beside requests after which the next idle moment is used to look at all objects, which takes 25 to 60 ms. Each
leaves some 7 objects in cycles. They are counted instead of the frozen objects, because Python counts those one by one.
"""
MOST_HELD = 50_000
"""The same for a server that is never idle."""


async def collect_garbage(num_running: Callable[[], int]) -> None:
    """Collect garbage whenever enough objects are new. Never returns."""
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, LAST_RESORT)
    num_freezes = 0
    while True:
        await asyncio.sleep(PAUSE_S)
        num_new = gc.get_count()[2]
        if num_new < USUAL:
            continue
        is_idle = not num_running()
        looks_at_all = num_freezes > (MOST_LEFT if is_idle else MOST_HELD)
        if looks_at_all:
            gc.unfreeze()
            num_freezes = 0
        elif num_new > TOO_MANY and not is_idle:
            gc.freeze()
        gc.collect()
        if looks_at_all or not is_idle:
            gc.freeze()
        if not is_idle:
            num_freezes += 1  # each may keep cycles of requests that ran
