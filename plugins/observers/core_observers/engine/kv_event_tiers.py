"""KV events about pages outside the KV cache.

Owns: the link from host memory and slow places to the publisher of events, KV connectors that do not know each other. Never
does: make or send an event. Called by: the engine core, once.
"""

from __future__ import annotations

from typing import Self

from core.engine.observer import Engine, EngineObserver, EngineStart
from core_kv_connectors.event_publisher import PublishedEvents
from core_kv_connectors.tiers.tiers import KVTiers


class KVEventTiers(EngineObserver):
    """Has the events of one engine tell of its pages in host memory, on disk, in shared directories, and of those it offers."""

    @classmethod
    def open(cls, start: EngineStart) -> Self | None:
        """Return an observer for an engine with events."""
        return cls() if start.config.cache.events is not None else None

    def attach(self, engine: Engine) -> None:
        """Link the connectors."""
        connectors = engine.kv_services.connectors
        published = next((one for one in connectors if isinstance(one, PublishedEvents)), None)
        for one in connectors:
            if published is not None and isinstance(one, KVTiers):
                one.watch_host(published)
                if one.disk is not None:
                    published.watch(one.medium, one.listed)
