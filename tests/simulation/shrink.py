"""From a schedule that fails to a short one that fails in the same way.

Owns: `shrink`. Never does: know what a violation means: the first one's kind is the measure. Called by: the runner.
"""

import time
from collections.abc import Callable, Iterator

import msgspec

from tests.simulation.events import AnyEvent, Ask, Schedule

MOST_TRIES = 600

Fails = Callable[[Schedule], str]
"""The kind of the first violation; empty where there is none."""


def shrink(schedule: Schedule, fails: Fails, limit_s: float = 60.0) -> Schedule:
    """Leave out and shorten what is not needed for the same violation. limit_s: of real time."""
    kind = fails(schedule)
    end = time.perf_counter() + limit_s
    tries = 0
    smaller = True
    while smaller:
        smaller = False
        for candidate in _candidates(schedule):
            tries += 1
            if tries > MOST_TRIES or time.perf_counter() > end:
                return schedule
            if fails(candidate) == kind:
                schedule = candidate
                smaller = True
                break
    return schedule


def _candidates(schedule: Schedule) -> Iterator[Schedule]:
    """Smaller schedules, the smallest first."""
    events = list(schedule.events)
    size = len(events) // 2
    while size:
        for start in range(0, len(events), size):
            yield schedule.with_events(events[:start] + events[start + size :])
        size //= 2
    yield from _simpler_settings(schedule)
    for index, event in enumerate(events):
        for simpler in _simpler(event):
            yield schedule.with_events([*events[:index], simpler, *events[index + 1 :]])


def _simpler_settings(schedule: Schedule) -> Iterator[Schedule]:
    settings = schedule.settings
    plain = {"num_apis": (0, 1, 2), "drafts": (0,), "ahead": (False,), "host_pages": (0,), "disk": (False,)}
    plain |= {"policy": ("fcfs",), "num_blocks": (32,), "delay_s": (0.004,), "step_s": (0.02,), "journal": (False,)}
    plain |= {"eviction": ("lru",), "share": (1.0,), "adapters": (False,)}
    for name, values in plain.items():
        for value in values:
            if getattr(settings, name) == value:
                break
            yield msgspec.structs.replace(schedule, settings=msgspec.structs.replace(settings, **{name: value}))


def _simpler(event: AnyEvent) -> Iterator[AnyEvent]:
    if isinstance(event, Ask):
        for changes in (
            {"n": 1},
            {"max_tokens": 1},
            {"length": 5},
            {"tenant": ""},
            {"leave_s": 0.0},
            {"timeout_s": 0.0},
        ):
            if any(getattr(event, name) != value for name, value in changes.items()):
                yield msgspec.structs.replace(event, **changes)
    for name in ("tries", "parts", "nth", "times"):
        if getattr(event, name, 1) > 1:
            yield msgspec.structs.replace(event, **{name: getattr(event, name) - 1})
    for name in ("pause_s", "patience_s", "priority", "api"):
        if getattr(event, name, 0):
            yield msgspec.structs.replace(event, **{name: 0})
