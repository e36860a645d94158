"""The tier on disk, which survives a restart and may be shared by processes.

Owns: `DiskTier`: a directory of page files for each fingerprint, bounded in bytes over all of them, least recently used
deleted first, and the thread that writes. Never does: trust a file (see `core.kv.tiers.page_file`), or block the engine
for a write. Called by: `KVTiers`.

The files are the only truth: what another process has written is found, and what it has deleted is merely missing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import OrderedDict
from pathlib import Path

from core.api.errors import ConfigError
from core.api.kv_transfer import Page
from core.kv.hashing import PrefixKey
from core.kv.tiers.page_file import PageError, read_page, write_page

logger = logging.getLogger(__name__)

SUFFIX = ".kv"
MAX_PENDING_BYTES = 256 << 20
KEPT_SHARE = 0.9
"""Deleting goes on until this share of the capacity is left, so that it is rare."""
ABANDONED_S = 600.0
"""Age at which a temporary file is what a crash left."""


class DiskTier:
    """Pages under `directory`. fingerprint: of model, numerics and layout; pages of another one are never read.

    capacity: bytes of all page files below `directory`, of other fingerprints too. num_dropped: pages that were not
    written because the disk was too slow or failed. Raises ConfigError when the directory cannot be written.
    """

    def __init__(self, directory: str | Path, fingerprint: str, capacity: int) -> None:
        self.root = Path(directory)
        self.directory = self.root / fingerprint
        self.fingerprint = fingerprint
        self.capacity = capacity
        self.num_dropped = 0
        self._bad: set[str] = set()
        self._num_bytes: int | None = None
        self._pending: OrderedDict[str, tuple[int, PrefixKey, Page]] = OrderedDict()
        self._pending_bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                [f"--kv-offloading-disk-path {directory}: the directory cannot be made ({error.strerror})."]
            ) from error
        if not os.access(self.directory, os.W_OK | os.X_OK):
            raise ConfigError([f"--kv-offloading-disk-path {directory}: the directory cannot be written."])
        self._writer = threading.Thread(target=self._write_pages, name="kv-disk", daemon=True)
        self._writer.start()

    def contains(self, group: int, key: PrefixKey) -> bool:
        """Whether there is a file for the block, or will be."""
        name = _name(group, key)
        return name not in self._bad and (name in self._pending or (self.directory / name).exists())

    def read(self, group: int, key: PrefixKey) -> Page | None:
        """The block's page, verified, or None. A file that is not what it should be is deleted, with a warning."""
        name = _name(group, key)
        with self._changed:
            waiting = self._pending.get(name)
        if waiting is not None and waiting[1].payload == key.payload:
            return waiting[2]
        path = self.directory / name
        try:
            page = read_page(path, self.fingerprint, group, key)
            os.utime(path)
        except FileNotFoundError:
            return None
        except (PageError, OSError) as error:
            logger.warning("The KV page %s is ignored: %s.", path, error)
            self._bad.add(name)
            if isinstance(error, PageError):
                with contextlib.suppress(OSError):
                    path.unlink()
            return None
        return page

    def write(self, group: int, key: PrefixKey, page: Page) -> None:
        """Have a page written soon; one that comes faster than the disk takes it is dropped."""
        name = _name(group, key)
        if self.contains(group, key):
            return
        with self._changed:
            if self._closing or self._pending_bytes + page.nbytes > MAX_PENDING_BYTES:
                self.num_dropped += 1
                return
            self._bad.discard(name)
            self._pending[name] = (group, key, page)
            self._pending_bytes += page.nbytes
            self._changed.notify_all()

    def flush(self, timeout_s: float = 60.0) -> bool:
        """Wait until what was handed over is written; False when that took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending, timeout_s)

    def clear(self) -> None:
        """Delete the pages of this fingerprint."""
        with self._changed:
            self._pending.clear()
            self._pending_bytes = 0
        for path in self.directory.glob("*" + SUFFIX):
            with contextlib.suppress(OSError):
                path.unlink()
        self._num_bytes = None

    def close(self, timeout_s: float = 10.0) -> None:
        """Finish writing and end the thread; what is not written by then is lost."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._writer.join(timeout_s)

    def _write_pages(self) -> None:
        """The writer's thread."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closing)
                if not self._pending:
                    return
                name, (group, key, page) = next(iter(self._pending.items()))
            try:
                size = write_page(self.directory / name, self.fingerprint, group, key, page)
                self._make_room(size)
            except OSError as error:
                self.num_dropped += 1
                logger.warning("The KV page %s was not written: %s.", self.directory / name, error)
            with self._changed:
                if self._pending.pop(name, None) is not None:
                    self._pending_bytes -= page.nbytes
                self._changed.notify_all()

    def _make_room(self, written: int) -> None:
        """Count a written file; above the capacity look at all files and delete those unused for longest."""
        if self._num_bytes is not None:
            self._num_bytes += written
            if self._num_bytes <= self.capacity:
                return
        files = self._files()
        total = sum(size for _, size, _ in files)
        if total > self.capacity:
            for _, size, path in sorted(files):
                if total <= KEPT_SHARE * self.capacity:
                    break
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
                total -= size
        self._num_bytes = total

    def _files(self) -> list[tuple[float, int, Path]]:
        """(time of last use, bytes, path) of all pages of all fingerprints; what crashes left is deleted."""
        found: list[tuple[float, int, Path]] = []
        for path in self.root.glob("*/*"):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                if path.suffix == SUFFIX:
                    found.append((status.st_mtime, status.st_size, path))
                elif path.suffix == ".tmp" and time.time() - status.st_mtime > ABANDONED_S:
                    path.unlink()
        return found


def _name(group: int, key: PrefixKey) -> str:
    return f"{key.digest.hex()}-{group}{SUFFIX}"
