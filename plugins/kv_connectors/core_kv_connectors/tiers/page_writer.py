"""The thread that writes pages.

Owns: `PageWriter`: the size limit on disk, and the handling of a full or failing disk. Never does: read a page, or make the
caller wait. Called by: the disk tier.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from pathlib import Path

from core.api.kv_transfer import PrefixKey
from core_kv_connectors.tiers.page_directory import PageDirectory
from core_kv_connectors.tiers.page_file import page_parts
from core_kv_connectors.tiers.page_queue import PageQueue, PendingPage

logger = logging.getLogger(__name__)

KEPT_SHARE = 0.9
"""Share of the limit at which deletion stops, so that it happens rarely."""
LOWERED_S = 600.0
"""Seconds for which a disk that was full gets less than its capacity."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class PageWriter(PageQueue):
    """Writes pages of `fingerprint` below `root`, in order of submission.

    capacity: limit in bytes on all page files below `root`, including other fingerprints; least recently used files are
        deleted.
    secret: for the MAC of each page, with which other users may write to `root`; empty: neither.
    on_placed: called with the name of each file after it was written, on the thread that writes.
    on_dropped: called with the key of each page that was not written, on either thread.
    directory: of the files; replaced when the directory had to be recreated.
    placed: names of files that this process has written or read, as far as it knows; others may have deleted them.

    Raises the errors of `PageDirectory`.
    """

    def __init__(
        self,
        root: Path,
        fingerprint: str,
        capacity: int,
        secret: bytes = b"",
        on_placed: Callable[[str], None] = lambda name: None,
        on_dropped: Callable[[PrefixKey], None] = lambda key: None,
    ) -> None:
        super().__init__("kv-disk", on_dropped)
        self._root = root
        self._fingerprint = fingerprint
        self._secret = secret
        self._on_placed = on_placed
        self.capacity = capacity
        self.directory = self._open()
        self._lowered = capacity
        self._lowered_until = 0.0
        self._num_bytes: int | None = None

    def forget_all(self) -> None:
        """Remove all pages from the queue. Files on disk are counted again."""
        super().forget_all()
        self._num_bytes = None

    def _try_to_store(self, name: str, pending: PendingPage) -> bool:
        """Write a page; False when the disk fails, which is logged only the first time in a row."""
        try:
            self._store(name, pending)
        except FileExistsError as error:
            logger.warning("A KV page was not written to %s: %s.", self._root, error)
        except OSError as error:
            self.num_dropped += 1
            self._on_dropped(pending.key)
            if not self.rest.num_failures:
                logger.warning("KV pages cannot be written to %s for now: %s.", self._root, error)
            return False
        return True

    def _store(self, name: str, pending: PendingPage) -> None:
        """Write a page, recreating a deleted directory, and deleting older pages on a full disk."""
        if not pending.replaces and self.directory.has(name):
            self.placed.add(name)  # another process, or an earlier one, has written it
            return
        parts = page_parts(self._fingerprint, pending.group, pending.key, pending.page, self._secret)
        size = sum(map(len, parts))
        try:
            self._place(name, pending, parts)
        except FileNotFoundError:
            self.directory = self._open()
            self._place(name, pending, parts)
        except OSError as error:
            if error.errno not in NO_ROOM or not self._lower_bound(size):
                raise
            self._place(name, pending, parts)
        known = self._num_bytes
        self._num_bytes = None if known is None else known + size
        if known is None or known + size > self._bound():
            self._make_room()

    def _open(self) -> PageDirectory:
        return PageDirectory(self._root, self._fingerprint, is_shared=bool(self._secret))

    def _place(self, name: str, pending: PendingPage, parts: tuple[bytes, memoryview]) -> None:
        """Write a file, and publish it unless the page was removed from the queue meanwhile."""
        directory = self.directory
        with directory.temporary(parts) as temporary, self._changed:
            if self._pending.get(name) is pending:
                directory.publish(temporary, name)
                self.placed.add(name)
                self._on_placed(name)

    def _bound(self) -> int:
        """Return the current size limit of all page files."""
        return self._lowered if time.monotonic() < self._lowered_until else self.capacity

    def _lower_bound(self, size: int) -> bool:
        """On a full disk, free `size` bytes or more and lower the limit for a while. False when nothing can be freed."""
        held = sum(stored.size for stored in self.directory.all_pages())
        if held <= size:
            return False
        if time.monotonic() >= self._lowered_until:
            logger.warning("The disk of %s is full; until it has room, older KV pages are deleted.", self._root)
        self._lowered = min(held, self._bound()) - size
        self._lowered_until = time.monotonic() + LOWERED_S
        self._make_room()
        return True

    def _make_room(self) -> None:
        """Scan all files and, above the limit, delete the least recently used."""
        bound = self._bound()
        pages = self.directory.all_pages()
        total = sum(stored.size for stored in pages)
        if total > bound:
            for stored in sorted(pages):
                if total <= KEPT_SHARE * bound:
                    break
                if self.directory.remove_stored(stored.path):
                    total -= stored.size
                    self.placed.discard(stored.path.rpartition("/")[2])
        self._num_bytes = total
