"""What connects the two halves of a KV connector, and the half in the scheduler with the engine's steps.

Owns: the protocol. Never does: anything. Called by: `SplitConnector` and its parts; the observer of worker halves and the kit
implement it.
"""

from __future__ import annotations

from typing import Protocol

from core.kv.connector import Copy
from core_kv_connectors.halves.thread import HalfThread


class Link(Protocol):
    """half: the worker half, on its thread. copy: makes the copies that wait for a plan now, while no step is in flight."""

    half: HalfThread
    copy: Copy

    def in_flight(self) -> tuple[int, int] | None:
        """Return the numbers of the oldest and the newest step in flight; None: there are none."""
        ...
