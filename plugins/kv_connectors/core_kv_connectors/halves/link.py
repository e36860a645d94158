"""What connects the two halves of a KV connector, and its half beside the scheduler with the engine's steps.

Owns: `Link`. Never does: move a block. Called by: `SplitConnector` and its parts; the observer of worker halves and the kit
make one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from core.kv.connector import Copy
from core_kv_connectors.halves.thread import HalfThread


@dataclass(frozen=True, slots=True)
class Link:
    """The engine as a `SplitConnector` sees it.

    half: the worker half, on its thread. copy: makes the copies that wait for a plan now, while no step is in flight.
    in_flight: returns the numbers of the oldest and the newest step in flight; None: there are none.
    """

    half: HalfThread
    copy: Copy
    in_flight: Callable[[], tuple[int, int] | None]
