"""The KV connectors of an engine, in order, as one.

Owns: `KVConnectors`: whom to ask for a page, who is given one, and what happens to a connector that fails. Never does: keep
pages, decide what is evicted, or know any connector. Called by: the KV manager (look-up, eviction), the engine loop
(`after_step`, `save_idle`, `report`, `close`) and the lifecycle (the rest).

The first connector that has a page gives it; every connector that wants an evicted block is given its page. One that raises is
left out from then on: its pages are missing, which costs time and no answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any

from core.api.config import EngineConfig
from core.api.kv_transfer import KVTransfers, Page, PrefixKey
from core.api.stats import SchedulerStats
from core.kv.block_copies import BlockCopies
from core.kv.connector import BlockCache, Copy, HeldPage, KVConnector
from core.kv.explainer import CacheView, MissExplainer
from core.kv.fingerprint import fingerprint
from core.kv.loads import Loads
from core.plugin.hookspecs import LoadContext
from core.plugin.table import PluginTable

logger = logging.getLogger(__name__)

NewPage = Callable[[], Page] | None
"""See `Executor`; None: pages may lie in any memory."""

LAST_WRITES_S = 1.0
"""Seconds that a connector gets at the end to write the pages that it has already been given."""


class KVConnectors:
    """All connectors of an engine as one; it outlives the managers that use it.

    connectors: the working connectors; one that fails is removed.
    copies:     copies that the next plan carries.
    loads:      waits of sequences for pages.
    names:      names of the connectors for messages; by default those of their classes.
    page_bytes: bytes of a page; 0: not checked.
    clock:      returns seconds, for the time that sequences wait.
    """

    def __init__(
        self,
        connectors: Iterable[KVConnector] = (),
        clock: Callable[[], float] = time.monotonic,
        *,
        names: Sequence[str] = (),
        page_bytes: int = 0,
    ) -> None:
        self.connectors = tuple(connectors)
        self.copies = BlockCopies()
        self.loads = Loads(self._call, clock)
        names = names or [type(connector).__name__ for connector in self.connectors]
        self._names = {id(connector): name for connector, name in zip(self.connectors, names, strict=True)}
        self._page_bytes = page_bytes
        self._has_pool = False
        self._keeps_pages = True
        self._sort()

    @classmethod
    def open(cls, config: EngineConfig, numerics: str, page_bytes: int, new_page: NewPage = None) -> KVConnectors:
        """Build the connectors that the configuration names, in its order. Raises ConfigError and PluginError.

        numerics:   name of the arithmetic that values depend on.
        page_bytes: bytes of one block in all layers of its group.
        new_page:   see `Executor`.
        """
        table = PluginTable(config.plugins.table)
        names = config.plugins.kv_connectors
        of_weights = partial(fingerprint, config, numerics)
        options = {"page_bytes": page_bytes, "fingerprint": of_weights, "new_page": new_page}
        opened: list[KVConnector] = []
        try:
            for name in names:
                own = config.plugins.arguments.get(f"kv_connector.{name}")  # `PLUGIN#2` where a plugin serves twice
                context = LoadContext(arguments=own, config=config, options=options)
                opened.append(table.load("kv_connector", name.partition("#")[0], context))
        except Exception:
            for connector in opened:  # an endpoint or a directory must be free for the next try
                connector.close(LAST_WRITES_S)
            raise
        return cls(opened, names=names, page_bytes=page_bytes)

    # --- called by the manager ---

    @property
    def has_pages(self) -> bool:
        """Whether pages can come from any connector."""
        return self._keeps_pages and bool(self._stores or self._loaders)

    @property
    def hears(self) -> bool:
        """Whether any connector follows cached blocks; otherwise the pool has no observer to call for each block."""
        return bool(self._savers or any(self._hearing.values()))

    def begin_pool(self, *, keeps_pages: bool) -> None:
        """Prepare for an empty pool: copies and loads of an earlier one end.

        keeps_pages: False without prefix caching.
        """
        self._keeps_pages = keeps_pages
        self.loads.end_all()
        self.copies.forget()
        if self._has_pool:
            self.notify("pool_replaced")
        self._has_pool = True
        self._sort()

    def explainer(self, cache: CacheView) -> MissExplainer | None:
        """Return the first connector's explainer of misses, or None."""
        made = (self._call(connector, "explainer", cache) for connector in self.connectors)
        return next((explainer for explainer in made if explainer is not None), None)

    def kept_blocks(self) -> list[tuple[int, int, PrefixKey, bytes | None]]:
        """Return the blocks whose bytes a new pool has; see `KVConnector`."""
        return [kept for connector in self._keepers for kept in self._call(connector, "kept_blocks") or ()]

    def damaged(self, block_ids: Sequence[int]) -> list[int]:
        """Return those of a hit's blocks that must not be used."""
        return [wrong for connector in self._keepers for wrong in self._call(connector, "damaged", block_ids) or ()]

    def contains(self, group: int, key: PrefixKey) -> bool:
        """Whether any connector has the page of a block in memory."""
        return any(self._call(connector, "contains", group, key) for connector in self._stores)

    def get(self, group: int, key: PrefixKey) -> Page | None:
        """Return the page of a block if a connector has it in memory, or None."""
        pages = (self._call(connector, "get", group, key) for connector in self._stores)
        return next((page for page in pages if page is not None), None)

    def missing(self, key: PrefixKey) -> str:
        """Return why a page of a block is missing, by the first connector that knows; empty: none does."""
        return next(filter(None, (self._call(one, "missing", key) for one in self.connectors)), "")

    def fits(self, page: Page) -> bool:
        """Whether a page has the size of a block. Any other size would make the step that copies it fail."""
        if not self._page_bytes or page.nbytes == self._page_bytes:
            return True
        logger.warning("A KV connector returned a page of %d bytes, expected %d.", page.nbytes, self._page_bytes)
        return False

    def loader(self, gap: Callable[[], tuple[int, PrefixKey] | None]) -> KVConnector | None:
        """Return the first connector that may have more of a prefix; None: compute the prompt at once.

        gap: returns group and key of a block that every longer prefix needs, None when that depends on the length. Called only
             when a connector can load, because it hashes.
        """
        able = [connector for connector in self._loaders if self._call(connector, "can_load")]
        missing = gap() if able else None
        return next((one for one in able if missing is None or self._call(one, "may_load", *missing)), None)

    def settle(self, transfers: KVTransfers, pages: Sequence[Page] | None) -> None:
        """Pass the pages that copies returned to the connectors that wanted them; None: the copies were not made."""
        saves = self.copies.settle(transfers)
        self.loads.leave_out(self.loads.copying)
        if pages is None:
            for save in saves:
                for connector in save.receivers:
                    self._call(connector, "lost", save.group, save.key)
            return
        # Not strict: after `forget` the copies in flight have no saves any more, while their pages still arrive.
        for save, page in zip(saves, pages, strict=False):
            if self.copies.is_wanted(save):
                for connector in save.receivers:
                    self._call(connector, "put", save.group, save.key, page, evicted=save.evicted)

    def check_integrity(self, num_blocks: int) -> None:
        """Raise an error unless copies name blocks of the pool and every connector's counts are right."""
        self.copies.check_integrity(num_blocks)
        for connector in self.connectors:
            connector.check_integrity()

    # --- events of the cache, from the pool and the registry ---

    def stored(self, block_id: int, group: int, key: PrefixKey, parent: bytes | None) -> None:
        """Report a newly cached block to the connectors that follow blocks."""
        for connector in self._hearing["stored"]:
            self._call(connector, "stored", block_id, group, key, parent)

    def answered(self, block_id: int) -> None:
        """Report that a block which was just stored has tokens of an answer."""
        for connector in self._hearing["answered"]:
            self._call(connector, "answered", block_id)

    def reused(self, block_id: int) -> None:
        """Report that a sequence started with a cached block."""
        for connector in self._hearing["reused"]:
            self._call(connector, "reused", block_id)

    def removed(self, block_id: int, group: int, key: PrefixKey, *, valid: bool) -> None:
        """Have the next plan return the bytes of an evicted block that a connector wants; discard invalid values everywhere."""
        for connector in self._hearing["removed"]:
            self._call(connector, "removed", block_id, group, key, valid=valid)
        if not self._savers:
            return
        # A save of it as a cached block is void now: a valid block is saved as evicted below, an invalid one not at all.
        saving = self.copies.stop_saving(block_id)
        if valid:
            receivers = tuple(one for one in self._savers if self._call(one, "wants", group, key))
            if receivers:
                self.copies.save_evicted(block_id, group, key, receivers)
        elif saving is not None:
            for connector in saving.receivers:
                self._call(connector, "discard", group, key)

    def cleared(self) -> None:
        """Drop every page; pages of copies in flight are dropped on arrival."""
        self.loads.end_all()  # first: no load may bring back what is deleted next
        self.copies.forget()
        self.notify("cleared")

    # --- pins, of observers ---

    def hold(self, owner: Hashable, pages: Sequence[HeldPage], share: float, seconds: float) -> int | None:
        """Have connectors hold pages; returns the largest number that one of them holds. See `KVConnector.hold`."""
        held = [self._call(connector, "hold", owner, pages, share, seconds) for connector in self.connectors]
        return max((number for number in held if number is not None), default=None)

    # --- called by the engine loop ---

    def after_step(self, kv: BlockCache) -> None:
        """Let connectors work after a step has ended."""
        for connector in self._working:
            self._call(connector, "after_step", kv)

    def save_idle(self, kv: BlockCache, copy: Copy) -> int | None:
        """Let connectors work while no request runs; returns the milliseconds until the next call, None for never."""
        waits = [self._call(connector, "save_idle", kv, copy) for connector in self.connectors]
        return min((wait for wait in waits if wait is not None), default=None)

    def report(self, stats: SchedulerStats) -> None:
        """Add the connectors' counters to `stats`."""
        for connector in self._reporting:
            self._call(connector, "report", stats)

    def use_weights(self, config: EngineConfig, numerics: str, page_bytes: int) -> None:
        """Switch connectors to the weights of `config`; no earlier manager may be used then. Arguments: as for `open`."""
        self.loads.end_all()
        self.notify("use_weights", config, partial(fingerprint, config, numerics))

    def close(self, kv: BlockCache, copy: Copy, seconds: float) -> None:
        """Let connectors save what they lack, for at most `seconds`, and end their threads."""
        self.notify("save_all", kv, copy, seconds)
        self.notify("close", LAST_WRITES_S)
        self.loads.hasher.shutdown(wait=False, cancel_futures=True)

    # --- failures ---

    def notify(self, method: str, *arguments: Any, **options: Any) -> None:
        """Call a method of every connector."""
        for connector in self.connectors:
            self._call(connector, method, *arguments, **options)

    def _call(self, connector: KVConnector, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method; None when the connector fails, which removes it, or was removed before."""
        try:
            return getattr(connector, method)(*arguments, **options)
        except Exception as error:
            # It may have been removed before: saves in flight still name it as a receiver.
            if connector in self.connectors:
                self._leave_out(connector, method, error)
            return None

    def _leave_out(self, connector: KVConnector, method: str, error: Exception) -> None:
        name = self._names.get(id(connector), type(connector).__name__)
        logger.warning(
            "The KV connector '%s' failed in %s and is left out until the engine starts again: %s: %s",
            name, method, type(error).__name__, error, exc_info=error,
        )  # fmt: skip
        self.connectors = tuple(one for one in self.connectors if one is not connector)
        self._sort()
        self.loads.leave_out(connector)
        try:
            connector.close(0.0)
        except Exception as again:
            logger.warning("The KV connector '%s' could not be closed: %s", name, again)

    def _sort(self) -> None:
        """Choose the connectors for each method: only those that override it, because most are called for each block."""
        with_pages = self.connectors if self._keeps_pages else ()
        self._stores = _overriding(with_pages, "get")
        self._loaders = _overriding(with_pages, "start_load")
        self._savers = _overriding(with_pages, "wants")
        self._keepers = _overriding(with_pages, "damaged")
        names = ("stored", "answered", "reused", "removed")
        self._hearing = {name: _overriding(self.connectors, name) for name in names}
        self._working = _overriding(self.connectors, "after_step")
        self._reporting = _overriding(self.connectors, "report")


def _overriding(connectors: Iterable[KVConnector], method: str) -> tuple[KVConnector, ...]:
    """Return the connectors whose class overrides `method`."""
    default = getattr(KVConnector, method)
    return tuple(one for one in connectors if getattr(type(one), method, None) is not default)
