"""Shares of tenants in the block pool (--kv-share-per-key).

Owns: `Shares`, which wraps the rule of --kv-eviction. Never does: keep blocks. Called by: `core.kv.eviction`, for the pool.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator

from core.kv.eviction import LeastRecent, Name

MAX_REMEMBERED = 1 << 14
"""Maximum number of pages that gave way by a share and are remembered as such."""


class Shares(LeastRecent[Name]):
    """Another order, before which the oldest names of tenants with more than `most` blocks give way.

    Names without a tenant count in no share.
    """

    def __init__(self, order: LeastRecent[Name], most: int) -> None:
        super().__init__()
        self._order = order
        self._most = most
        self._owners: dict[Name, tuple[str, int, Hashable]] = {}
        self._gave_way: OrderedDict[Hashable, None] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._queues: dict[str, OrderedDict[Name, None]] = {}
        self._over: dict[str, None] = {}

    def __iter__(self) -> Iterator[Name]:
        return iter(self._order)

    def cached(self, name: Name, page: Hashable, worth: float, tenant: str = "", size: int = 1) -> None:
        """Add a name, and count it in its tenant's share."""
        self._order.cached(name, page, worth)
        if tenant:
            self._owners[name] = (tenant, size, page)
            self._gave_way.pop(page, None)
            self._count(tenant, size)

    def hit(self, name: Name, worth: float) -> None:
        """Report a name that was found again."""
        self._order.hit(name, worth)

    def push(self, name: Name) -> None:
        """Let a name give way."""
        self._order.push(name)
        if name in self._owners:
            tenant, *_ = self._owners[name]
            self._queues.setdefault(tenant, OrderedDict())[name] = None

    def remove(self, name: Name) -> None:
        """Let a listed name stay."""
        self._order.remove(name)
        self._leave_queue(name)

    def oldest(self) -> Name:
        """Return the oldest name of the tenant that has most and is over its share, else that of the order.

        O(tenants over their share), which are fewer than 1 / share.
        """
        over = [tenant for tenant in self._over if self._queues.get(tenant)]
        if not over:
            return self._order.oldest()
        queue = self._queues[max(over, key=self._sizes.__getitem__)]
        return next(iter(queue))

    def evict(self, name: Name) -> float:
        """Remove a listed name that gives way; returns its worth."""
        self._leave_queue(name)
        if name in self._owners and self._owners[name][0] in self._over:
            self._gave_way[self._owners[name][2]] = None
            if len(self._gave_way) > MAX_REMEMBERED:
                self._gave_way.popitem(last=False)
        self._disown(name)
        return self._order.evict(name)

    def was_over_share(self, page: Hashable) -> bool:
        """Whether a page gave way lately because its tenant had more than its share."""
        return page in self._gave_way

    def forget(self, name: Name) -> None:
        """Drop a name that is not listed and no longer cached."""
        self._disown(name)
        self._order.forget(name)

    def clear(self) -> None:
        """Drop all names."""
        self._order.clear()
        for table in (self._owners, self._gave_way, self._sizes, self._queues, self._over):
            table.clear()

    def _leave_queue(self, name: Name) -> None:
        if name in self._owners:
            tenant, *_ = self._owners[name]
            del self._queues[tenant][name]

    def _disown(self, name: Name) -> None:
        if name in self._owners:
            tenant, size, _ = self._owners.pop(name)
            self._count(tenant, -size)

    def _count(self, tenant: str, change: int) -> None:
        size = self._sizes.pop(tenant, 0) + change
        if size:
            self._sizes[tenant] = size
        else:
            self._queues.pop(tenant, None)
        if size > self._most:
            self._over[tenant] = None
        else:
            self._over.pop(tenant, None)
