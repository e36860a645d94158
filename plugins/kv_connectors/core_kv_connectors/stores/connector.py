"""Pages in a store of others, as the KV connectors `lmcache` and `mooncake_store`.

Owns: `Stored`: the store of an engine, opened for its weights. Never does: keep pages. Called by: the manifests of these
connectors.
"""

from __future__ import annotations

from collections.abc import Callable

from core.api.config import EngineConfig
from core.plugin.hookspecs import LoadContext
from core_kv_connectors.stores.store import Store
from core_kv_connectors.stores.tier import StoreTier
from core_kv_connectors.tiers.host import HostTier
from core_kv_connectors.tiers.local import LocalTiers
from core_kv_connectors.tiers.page_memory import NewPage
from core_kv_connectors.tiers.slow_tier import SlowTier


class Stored(LocalTiers):
    """Pages in the store that `dial` returns. name: of the connector. secret: of all engines; empty: no MAC.

    fingerprint, page_bytes, new_page: as for `LocalTiers`.

    Raises ConfigError.
    """

    argument = "kv_connectors"

    def __init__(
        self,
        config: EngineConfig,
        fingerprint: Callable[[], str],
        page_bytes: int,
        new_page: NewPage | None = None,
        *,
        name: str,
        dial: Callable[[], Store],
        secret: bytes = b"",
    ) -> None:
        self.places = (name, name)
        self._dial = dial
        self._secret = secret
        super().__init__(config, fingerprint, page_bytes, new_page)

    def _open_host(self, config: EngineConfig) -> HostTier | None:
        return None

    def _open_disk(self, config: EngineConfig, fingerprint: Callable[[], str]) -> SlowTier | None:
        if not config.cache.enable_prefix_caching:
            return None
        return StoreTier(self._dial(), fingerprint(), self._page_bytes, self._secret, self._new_page)


def open_store(context: LoadContext, name: str, dial: Callable[[], Store], secret: bytes) -> Stored:
    """Build the connector of a manifest. name, dial, secret: see `Stored`."""
    assert context.config is not None
    return Stored(
        context.config,
        context.options["fingerprint"],
        context.options["page_bytes"],
        context.options.get("new_page"),
        name=name,
        dial=dial,
        secret=secret,
    )
