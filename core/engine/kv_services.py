"""The surroundings of an engine's KV manager, as the engine core uses them.

Owns: `KVServices`, the contract, and `NoKVServices` for an engine that has none. Never does: cache anything.
Called by: the engine core; the composition builds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from core.api.config import EngineConfig
from core.api.kv_transfer import KVTransfers, Page
from core.api.messages import SchedulerStats
from core.kv.manager import KVManager
from core.kv.observer import CacheObserver

Copy = Callable[[KVTransfers], list[Page] | None]
"""Copies KV blocks between steps; None when that failed."""


class KVServices(Protocol):
    """Tiers, events and measurements around one KV manager."""

    @property
    def tiers(self) -> Any:
        """Storage below the device, which the manager loads from; None without any."""
        ...

    @property
    def observers(self) -> Sequence[CacheObserver]:
        """Listeners for the manager."""
        ...

    def after_step(self, kv: KVManager) -> None:
        """Handle what a step changed."""
        ...

    def save_idle(self, kv: KVManager, copy: Copy) -> int | None:
        """Save for a few milliseconds; returns the milliseconds until the next call, None when nothing is left to save."""
        ...

    def report(self, stats: SchedulerStats) -> None:
        """Add to a copy of the statistics."""
        ...

    def use_weights(self, config: EngineConfig, numerics: str, page_bytes: int) -> None:
        """From now on blocks are those of the weights of `config`. A tier that fails is dropped."""
        ...

    def drop_host_pages(self) -> None:
        """Forget the blocks in host memory."""
        ...

    def close(self, kv: KVManager, copy: Copy, seconds: float) -> None:
        """Save for at most `seconds`, and end all threads."""
        ...


class NoKVServices:
    """An engine that caches on the device alone."""

    tiers = None
    observers: Sequence[CacheObserver] = ()

    def after_step(self, kv: KVManager) -> None:
        """Nothing follows a step."""

    def save_idle(self, kv: KVManager, copy: Copy) -> int | None:
        """Nothing is saved."""
        return None

    def report(self, stats: SchedulerStats) -> None:
        """Nothing is measured."""

    def use_weights(self, config: EngineConfig, numerics: str, page_bytes: int) -> None:
        """Nothing depends on weights."""

    def drop_host_pages(self) -> None:
        """No block is in host memory."""

    def close(self, kv: KVManager, copy: Copy, seconds: float) -> None:
        """Nothing to end."""
