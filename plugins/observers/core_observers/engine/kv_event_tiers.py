"""KV events about pages in host memory.

Owns: the link from host memory to the publisher of events, two KV connectors that do not know each other. Never does: make or
send an event. Called by: the engine core, once.
"""

from __future__ import annotations

from typing import Self

from core.engine.observer import Engine, EngineObserver, EngineStart
from core_kv_connectors.event_publisher import PublishedEvents
from core_kv_connectors.tiers.tiers import KVTiers


class KVEventTiers(EngineObserver):
    """Has the events of one engine tell of its pages in host memory."""

    @classmethod
    def open(cls, start: EngineStart) -> Self | None:
        """Return an observer for an engine with events and host memory."""
        cache = start.config.cache
        return cls() if cache.events is not None and cache.host_bytes else None

    def attach(self, engine: Engine) -> None:
        """Link the connectors."""
        connectors = engine.kv_services.connectors
        published = next((one for one in connectors if isinstance(one, PublishedEvents)), None)
        for one in connectors:
            if published is not None and isinstance(one, KVTiers):
                one.watch_host(published)
