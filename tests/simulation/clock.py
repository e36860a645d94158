"""The simulated clock in the place of the machine's.

Owns: which functions of `time` are replaced, and the defaults that hold on to the real ones. Never does: move the clock.
Called by: the world, around the schedules that it runs.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from core.kv.connectors import KVConnectors
from core.scheduler.scheduler import Scheduler
from core_frontend.denylist import Denylist
from core_frontend.queue.limit import QueueLimit
from core_kv_connectors.tiers.page_source import PageSource
from core_kv_connectors.tiers.tiers import KVTiers
from core_supervision.revival import Reviver

HOLDERS = (Denylist, QueueLimit, Reviver, PageSource, KVConnectors, KVTiers, Scheduler)
"""Classes whose `clock` defaults to `time.monotonic` as it was when they were defined."""

RESOLUTION = SimpleNamespace(resolution=1e-9)


class Clock:
    """What `time` says. monotonic: seconds of the loop. offset: what the time of day is ahead of it."""

    def __init__(self) -> None:
        self.monotonic: Callable[[], float] = time.monotonic
        self.offset = 1.7e9

    def read(self) -> float:
        return self.monotonic()

    def time_of_day(self) -> float:
        return self.monotonic() + self.offset


@contextmanager
def simulated_time(clock: Clock) -> Iterator[None]:
    """Within, `time.monotonic`, `time.time` and `time.perf_counter` say what the clock does."""
    real = (time.monotonic, time.time, time.perf_counter, time.get_clock_info)
    before = [(holder.__init__, holder.__init__.__defaults__, holder.__init__.__kwdefaults__) for holder in HOLDERS]
    for function, defaults, keywords in before:
        function.__defaults__ = tuple(_swapped(value, real[0], clock.read) for value in defaults or ()) or None
        if keywords:
            function.__kwdefaults__ = {name: _swapped(value, real[0], clock.read) for name, value in keywords.items()}
    time.monotonic, time.time, time.perf_counter = clock.read, clock.time_of_day, clock.read
    time.get_clock_info = lambda name: RESOLUTION  # each event loop asks, and the real one takes long
    try:
        yield
    finally:
        time.monotonic, time.time, time.perf_counter, time.get_clock_info = real
        for function, defaults, keywords in before:
            function.__defaults__, function.__kwdefaults__ = defaults, keywords


def _swapped(value: object, old: object, new: object) -> object:
    return new if value is old else value
