"""The contract of KV connectors, which store cached blocks outside the block pool and load them back.

Owns: `KVConnector`, and `BlockCache`, the part of the KV manager that a connector may use. Never does: import torch, read or
write a page. Called by: plugins (they inherit from `KVConnector`), `core.kv.connectors` (calls them).

Every method is called from the thread that plans steps, between two steps unless it says otherwise, so none may block. Slow
storage is read on a thread of the connector (`start_load`). A method that raises ends the connector, not the engine: the
engine continues without it, with a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Protocol

from core.api.config import EngineConfig
from core.api.kv_load import KVLoad
from core.api.kv_transfer import KVTransfers, Page, PrefixKey
from core.api.stats import SchedulerStats

Copy = Callable[[KVTransfers], list[Page] | None]
"""Function that makes copies now, between steps, and returns the saved pages; None when that failed."""

HeldPage = tuple[int, PrefixKey, bool]
"""Group, key, and whether the pool holds the block as well, so that only storage that outlives it need hold the page."""


class BlockCache(Protocol):
    """The part of the KV manager that a connector may use."""

    def register_starting(self) -> None:
        """Cache the blocks that running sequences started with; until then they have not been reported."""
        ...

    def cached_blocks(self) -> Iterable[tuple[int, int, PrefixKey]]:
        """Return (block id, group, key) of every cached block."""
        ...

    def save(self, block_id: int, group: int, key: PrefixKey, connector: KVConnector) -> None:
        """Have the next step pass the bytes of a cached block to `put` of `connector`; the block stays cached."""
        ...

    def copy_now(self, copy: Copy) -> bool:
        """Make the copies that wait for the next step now; False when that failed."""
        ...


class KVConnector:
    """A plugin of kind `kv_connector`, owned by the engine. Inherit from it and override what the connector does; by default
    a method does nothing.

    Blocks are named by group of layers and `PrefixKey`. A page may be returned only under the very key that it was saved
    with (digest and payload), and only for the weights it was saved for (`use_weights`).

    argument: engine argument that is reported as the reason when a request waits for a load.
    """

    argument: str = "kv_transfer_config"

    # --- look-up, while a step is planned: answer from memory, without delay ---

    def contains(self, group: int, key: PrefixKey) -> bool:
        """Whether `get` would return the page of a block."""
        return False

    def get(self, group: int, key: PrefixKey) -> Page | None:
        """Return the verified page of a block if it is in memory, or None."""
        return None

    def can_load(self) -> bool:
        """Whether there is slow storage, and it is available at the moment."""
        return False

    def may_load(self, group: int, key: PrefixKey) -> bool:
        """Whether slow storage seems to have a block, by one quick check; its page may turn out to be unusable."""
        return False

    def missing(self, key: PrefixKey) -> str:
        """Return why a page of a block is not here, for explanations: `page_damaged`, `not_saved`; empty: unknown."""
        return ""

    # --- loads: a sequence steps aside until its load is done ---

    def start_load(self, load: KVLoad) -> None:
        """Start filling a load on a thread of the connector (`KVLoad.fill`), which then calls `load.finish()`."""
        load.finish()

    def is_loaded(self, load: KVLoad) -> bool:
        """Whether a load is done; called for each that is, and for the oldest of the others. The engine ends late ones."""
        return load.is_done

    def end_load(self, load: KVLoad) -> None:
        """Drop a load whose pages are in blocks, or whose sequence no longer waits."""
        load.finish()

    # --- saving ---

    def wants(self, group: int, key: PrefixKey) -> bool:
        """Whether to receive the page of a block that is being evicted; called while a step is planned."""
        return False

    def put(self, group: int, key: PrefixKey, page: Page, *, evicted: bool) -> None:
        """Store a page, which never changes. evicted: its block has left the pool; False: requested by `BlockCache.save`."""

    def lost(self, group: int, key: PrefixKey) -> None:
        """Handle that `put` will not be called for a wanted page, because the step that should have copied it failed."""

    def discard(self, group: int, key: PrefixKey) -> None:
        """Discard a page that was saved, or is being loaded, and has wrong values: it must never be returned."""

    # --- pins ---

    def hold(self, owner: Hashable, pages: Sequence[HeldPage], share: float, seconds: float) -> int | None:
        """Hold pages, those here and those that come, in place of what is held for `owner`; None, and no change: no room.

        share: of the memory that all held pages may take. seconds: after which storage that outlives the engine drops them.
        Returns the number of pages that it holds.
        """
        return None

    def release(self, owner: Hashable) -> None:
        """Let the pages that are held for an owner give way again; owners without any are ignored."""

    # --- blocks in a pool's memory that outlives engines ---

    def kept_blocks(self) -> list[tuple[int, int, PrefixKey, bytes | None]]:
        """Return (block id, group, key, parent) of blocks whose bytes a new, empty pool already has, first evicted first."""
        return []

    def damaged(self, block_ids: Sequence[int]) -> list[int]:
        """Return the kept blocks among these, which a sequence is about to use, whose bytes are not those that were cached."""
        return []

    # --- events of the cache ---

    def stored(self, block_id: int, group: int, key: PrefixKey, parent: bytes | None) -> None:
        """Note that a block is cached from now on. parent: digest of the preceding block, None for a first one."""

    def answered(self, block_id: int) -> None:
        """Note that a block which was just `stored` has tokens of an answer, not of a prompt alone."""

    def reused(self, block_id: int) -> None:
        """Note that a sequence started with a cached block."""

    def removed(self, block_id: int, group: int, key: PrefixKey, *, valid: bool) -> None:
        """Note that a block is no longer cached. valid: its values are right and stay in place until the next step."""

    def cleared(self) -> None:
        """Drop every page: the user has reset the prefix cache."""

    def pool_replaced(self) -> None:
        """Note that the pool is replaced by an empty one: loads are over and no copy arrives. Stored pages remain valid."""

    # --- work ---

    def after_step(self, cache: BlockCache) -> None:
        """Work after a step: publish, or have a few blocks saved with the next one."""

    def save_idle(self, cache: BlockCache, copy: Copy) -> int | None:
        """Do a few milliseconds of work while no request runs.

        Returns the milliseconds after which to be called again if there is still no work; None: nothing is left to do.
        """
        return None

    def save_all(self, cache: BlockCache, copy: Copy, seconds: float) -> None:
        """Save what is missing, for at most `seconds`, because the engine ends."""

    def report(self, stats: SchedulerStats) -> None:
        """Add the counters of this connector to `stats`."""

    def use_weights(self, config: EngineConfig, fingerprint: Callable[[], str]) -> None:
        """Switch to other weights: from now on return only pages that were saved under the same fingerprint.

        fingerprint: returns 32 hex digits over everything except tokens that values depend on; computing it reads files.
        """

    def save_for_sleep(self, cache: BlockCache, copy: Copy, seconds: float, *, keeps_memory: bool) -> None:
        """Save what is missing, for about `seconds`, before a sleep. keeps_memory: False when `drop_memory` will be called."""
        self.save_all(cache, copy, seconds)

    def drop_memory(self) -> None:
        """Free host memory, because the engine goes to sleep at level 2."""

    def close(self, timeout_s: float) -> None:
        """End threads within `timeout_s` seconds; what is not written by then is lost."""

    def check_integrity(self) -> None:
        """Raise an error unless counters and stored pages agree. Called by tests and on request."""

    def explainer(self, cache: Any) -> Any:
        """Return an explainer of cache misses, or None. For the engine's own connectors: see `core.kv.explainer`."""
        return None
