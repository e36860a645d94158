"""The contract of KV connectors: places outside the block pool that cached blocks come from and go to.

Owns: `KVConnector`, and `BlockCache`, the part of the KV manager that a connector may use. Never does: import torch, read or
write a page. Called by: plugins (they inherit from `KVConnector`), `core.kv.connectors` (calls them).

Every method is called from the thread that plans steps, between two steps unless it says otherwise, so none may wait: a slow
place is read on a thread of the connector (`start_load`). A method that raises ends the connector, not the engine: the
engine goes on without it, with a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from core.api.config import EngineConfig
from core.api.kv_load import KVLoad
from core.api.kv_transfer import KVTransfers, Page, PrefixKey
from core.api.messages import SchedulerStats

Copy = Callable[[KVTransfers], list[Page] | None]
"""Makes copies now, between steps; None when that failed."""


class BlockCache(Protocol):
    """The KV manager as a connector sees it."""

    def register_starting(self) -> None:
        """Cache the blocks that running sequences started with; until then nobody was told of them."""
        ...

    def cached_blocks(self) -> Iterable[tuple[int, int, PrefixKey]]:
        """(block id, group, key) of every cached block."""
        ...

    def save(self, block_id: int, group: int, key: PrefixKey, connector: KVConnector) -> None:
        """Have the next step hand the bytes of a cached block to `put` of `connector`; the block stays cached."""
        ...

    def copy_now(self, copy: Copy) -> bool:
        """Make the copies that wait for the next step now; False when that failed."""
        ...


class KVConnector(Protocol):
    """Kind `kv_connector`. Inherit from it and override what the connector does; by default a method does nothing.

    Blocks are named by group of layers and `PrefixKey`. A page may be returned only under the very key that it was saved
    with (digest and payload), and only for the weights it was saved for (`use_weights`).

    argument: engine argument that is named when a request waits for a load.
    """

    argument: str = "kv_transfer_config"

    # --- look-up, while a step is planned: answer from memory, at once ---

    def contains(self, group: int, key: PrefixKey) -> bool:
        """Whether `get` would return the page of a block."""
        return False

    def get(self, group: int, key: PrefixKey) -> Page | None:
        """The verified page of a block if it is in memory, or None."""
        return None

    def can_load(self) -> bool:
        """Whether there is a slow place, and it answers at the moment."""
        return False

    def may_load(self, group: int, key: PrefixKey) -> bool:
        """Whether the slow place seems to have a block, by a single glance; its page may turn out to be unusable."""
        return False

    # --- loads: a sequence steps aside until its load is done ---

    def start_load(self, load: KVLoad) -> None:
        """Begin to fill a load on a thread of the connector (`KVLoad.fill`), which then calls `load.finish()`."""
        load.finish()

    def is_loaded(self, load: KVLoad) -> bool:
        """Whether a load is done; asked until it is. The engine itself ends a load that takes too long."""
        return load.is_done

    def end_load(self, load: KVLoad) -> None:
        """The pages of a load are in blocks, or nobody waits for them any more."""
        load.finish()

    # --- saving ---

    def wants(self, group: int, key: PrefixKey) -> bool:
        """Whether to be given the page of a block that is being evicted; asked while a step is planned."""
        return False

    def put(self, group: int, key: PrefixKey, page: Page, *, evicted: bool) -> None:
        """Keep a page, which never changes. evicted: the block has left the pool; False: `BlockCache.save` asked for it."""
        return None

    def lost(self, group: int, key: PrefixKey) -> None:
        """The step that should have copied a wanted page failed: `put` will not be called for it."""
        return None

    def discard(self, group: int, key: PrefixKey) -> None:
        """A page that was saved, or is being loaded, has wrong values: no one may get it."""
        return None

    # --- events of the cache ---

    def stored(self, block_id: int, group: int, key: PrefixKey, parent: bytes | None) -> None:
        """A block is cached from now on. parent: digest of the preceding block, None for a first one."""
        return None

    def reused(self, block_id: int) -> None:
        """A sequence started with a cached block."""
        return None

    def removed(self, block_id: int, group: int, key: PrefixKey, *, valid: bool) -> None:
        """A block is no longer cached. valid: its values are right and stay in place until the next step."""
        return None

    def cleared(self) -> None:
        """The user dropped the prefix cache: forget every page."""
        return None

    def pool_replaced(self) -> None:
        """The pool is replaced by an empty one; loads are over and no copy arrives. Pages that were kept stay good."""
        return None

    # --- work ---

    def after_step(self, cache: BlockCache) -> None:
        """A step has ended: publish, or have a little saved with the next one."""
        return None

    def save_idle(self, cache: BlockCache, copy: Copy) -> int | None:
        """No request runs: do a few milliseconds of work.

        Returns the milliseconds after which to be called again if there is still no work; None: nothing is left to do.
        """
        return None

    def save_all(self, cache: BlockCache, copy: Copy, seconds: float) -> None:
        """The engine ends: save what is missing, for at most `seconds`."""
        return None

    def report(self, stats: SchedulerStats) -> None:
        """Add what is counted here."""
        return None

    def use_weights(self, config: EngineConfig, fingerprint: Callable[[], str]) -> None:
        """From now on blocks belong to other weights: return pages only if they were saved under the same fingerprint.

        fingerprint: 32 hex digits over everything besides tokens that values depend on; computing it reads files.
        """
        return None

    def drop_memory(self) -> None:
        """The engine goes to sleep: free host memory."""
        return None

    def close(self, timeout_s: float) -> None:
        """End threads within `timeout_s` seconds; what is not written by then is lost."""
        return None

    def check_integrity(self) -> None:
        """Raise an error unless what is counted agrees with what is kept. Called by tests and on request."""
        return None

    def explainer(self, cache: Any) -> Any:
        """A finder of the causes of cache misses, or None. For the engine's own: see `core.kv.explainer`."""
        return None
