"""Adapters of schedules: three of them, of which two are in memory and one is computed in a step.

Owns: which request has which, the thread that reads them, in no thread. Never does: compute. Called by: the fronts, the
executor, the invariants.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from core.api.adapters import AdapterFacts, AdaptersConfig, AdapterSource
from tests.simulation.events import Ask

NAMES = ("a", "b", "c")
CONFIG = AdaptersConfig(max_loras=1, max_cpu_loras=2, modules=tuple(AdapterSource(name, f"/{name}") for name in NAMES))


def facts_of(name: str) -> AdapterFacts:
    """What the stand-in finds in a file."""
    return AdapterFacts(f"digest of {name}", 8, 100)


def adapter_of(event: Ask, *, some: bool) -> AdapterFacts | None:
    """The adapter of a request, without a draw. some: whether the schedule has any."""
    choices = (None, None, *map(facts_of, NAMES))
    return choices[(event.family * 7 + event.length * 3 + event.max_tokens) % len(choices)] if some else None


class ReadAtOnce:
    """In the place of a thread pool: a file is read, or fails, when that is asked for. A death is no failure."""

    def __init__(self, *args: object, **options: object) -> None:
        pass

    def submit(self, work: Callable[..., Any], *args: object) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def shutdown(self, **options: object) -> None:
        pass
