"""The KV connectors that the configuration's stage would choose, for configurations that tests write by hand."""

from typing import Any

import msgspec

from core.api.config import CacheConfig, EngineConfig, ResolvedPlugin
from core.kv.connectors import KVConnectors
from core_kv_connectors.tiers.tiers import KVTiers

ROWS = tuple(
    ResolvedPlugin(kind="kv_connector", name=name, target=f"core_kv_connectors.manifests.{name}")
    for name in ("tiers", "events", "residency", "explain")
)


def asked_by(cache: CacheConfig) -> tuple[str, ...]:
    """Names of the connectors that a cache asks for, in order."""
    asked = {
        "tiers": cache.host_bytes or cache.disk_path,
        "events": cache.events,
        "residency": cache.metrics_sample,
        "explain": cache.explains != "off",
    }
    return tuple(name for name, wanted in asked.items() if wanted)


def with_cache(config: EngineConfig, **cache: Any) -> EngineConfig:
    """A configuration with another cache and the connectors that this one asks for."""
    made = CacheConfig(**cache)
    plugins = config.plugins
    others = [row for row in plugins.table if row.kind != "kv_connector"]
    plugins = msgspec.structs.replace(plugins, table=(*others, *ROWS), kv_connectors=asked_by(made))
    return msgspec.structs.replace(config, cache=made, plugins=plugins)


def tiers_of(connectors: KVConnectors) -> KVTiers:
    """The tiers among connectors."""
    return next(one for one in connectors.connectors if isinstance(one, KVTiers))
