"""The sources of pages for look-ups: host memory, pages waiting to be written, the disk.

Owns: `PageSource`: pages available immediately, and loads of the others. Never does: decide what is saved, or copy from
or to the device. Called by: `KVTiers`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from core.api.kv_load import KVLoad
from core.api.kv_transfer import Page, PrefixKey
from core_kv_connectors.tiers.host import HostTier
from core_kv_connectors.tiers.page_reader import STUCK_S, PageReader
from core_kv_connectors.tiers.slow_tier import SlowTier


class PageSource:
    """Host memory first, then disk; either may be None.

    Pages in host memory, and pages waiting to be written, are available immediately. Pages on disk have to be loaded:
    `start`, then `collect` until it answers True, then `end`.
    """

    def __init__(
        self, host: HostTier | None, disk: SlowTier | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._host = host
        self._disk = disk
        self.reader = None if disk is None else PageReader(disk, clock)
        if self.reader is not None:
            self.reader.begin()

    def has_in_memory(self, group: int, key: PrefixKey) -> bool:
        """Whether `read` has the block's page."""
        if self._host is not None and self._host.contains(group, key):
            return True
        return self._disk is not None and self._disk.find(group, key) is not None

    def read(self, group: int, key: PrefixKey) -> Page | None:
        """Return the block's page if it is in memory, or None."""
        page: Page | None = None
        if self._host is not None:
            page = self._host.read(group, key)
        if page is None and self._disk is not None:
            page = self._disk.find(group, key)
        return page

    def answers(self) -> bool:
        """Whether there is a disk that answers; one that does not is not used for a while."""
        if self._disk is None or self.reader is None:
            return False
        if not self._disk.may_be_read:
            return False
        if self.reader.is_stuck or self._disk.late_s > STUCK_S:
            self._disk.leave_alone()
            self.reader.end_unsure()
            return False
        return True

    def may_load(self, group: int, key: PrefixKey) -> bool:
        """Whether the disk seems to have a block; its page may still be unreadable."""
        return self._disk is not None and self._disk.may_have(group, key)

    def start(self, load: KVLoad) -> None:
        """Start to read pages from the disk."""
        if self.reader is not None and self._disk is not None:
            self.reader.start(load, is_unsure=self._disk.is_late)

    def collect(self, load: KVLoad) -> bool:
        """Whether a load is done; its pages are then in host memory as well."""
        if not load.is_done:
            self.answers()  # stops using a disk that no longer answers, before any other call accesses it
            return False
        if self.reader is not None and self._disk is not None and self.reader.is_late(load):
            self._disk.late(load)
        if self._host is not None:
            for (group, index), page in load.pages.items():
                key = load.keys[index]
                self._host.write(group, key, page)
        return True

    def why_incomplete(self, load: KVLoad) -> str:
        """Return why a load that is done lacks pages that the disk has said it has; empty: it does not."""
        if self.reader is not None and self.reader.is_late(load):
            return "they were not read in time"
        return "a page is missing or damaged" if load.absent else ""

    def end(self, load: KVLoad) -> None:
        """End a load: its pages have been taken, or are no longer needed."""
        if self.reader is not None:
            self.reader.end(load)

    def end_all(self) -> None:
        """End all loads; pages still being read are dropped."""
        if self.reader is not None:
            self.reader.end_all()

    def discard(self, group: int, key: PrefixKey) -> None:
        """Drop a page that may have wrong values, wherever it is."""
        if self.reader is not None:
            self.reader.forget(group, key)
        if self._host is not None:
            self._host.discard(group, key)
        if self._disk is not None:
            self._disk.discard(group, key)

    def close(self, timeout_s: float) -> None:
        """Stop reading; a page in progress gets `timeout_s` seconds."""
        if self.reader is not None:
            self.reader.close(timeout_s)
