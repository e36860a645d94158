"""The tier on disk, which survives a restart and may be shared by processes.

Owns: `DiskTier`: pages in a directory per fingerprint. Never does: trust a file (see
`core_kv_connectors.tiers.page_file`), touch files of others (`core_kv_connectors.tiers.page_directory`), make the
engine wait for a write (`core_kv_connectors.tiers.page_writer`), or raise because of the disk. Called by: `KVTiers`.

The files are the only truth: pages written by another process are found, and deleted ones are merely missing.
`contains`, `read` and `prepare` access the disk and may hang with it, so they belong to other threads; the thread that plans
steps has `may_have` and `holds`. The threads share only single sets and numbers. A failing disk is not used for a while, for
reading and writing separately; until then it counts as empty.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Hashable, Iterator, Set
from pathlib import Path

from core.api.errors import ConfigError
from core.api.kv_load import KVLoad
from core.api.kv_transfer import Page, PrefixKey
from core_kv_connectors.tiers.faults import DAMAGED
from core_kv_connectors.tiers.limited_calls import LimitedCalls, within
from core_kv_connectors.tiers.page_directory import UnsafeDirectoryError, page_name
from core_kv_connectors.tiers.page_file import PageError, read_page
from core_kv_connectors.tiers.page_marks import PageMarks
from core_kv_connectors.tiers.page_memory import NewPage, PageMemory
from core_kv_connectors.tiers.page_writer import PageWriter
from core_kv_connectors.tiers.queued_tier import QueuedTier

logger = logging.getLogger(__name__)

OPEN_S = 10.0
"""Seconds in which the directory has to answer when it is opened: at the start, and when weights change."""


class DiskTier(QueuedTier[PageWriter]):
    """Pages of `page_bytes` bytes under `directory`.

    fingerprint: of model, numerics and layout, 32 hex digits; pages of another one are never read.
    capacity: limit in bytes on all page files below `directory`, including other fingerprints.
    argument: that named the directory, for messages.
    secret: for the MAC of each page (see `page_file`), with which other users may write to the directory; empty: neither.
    new_page: where pages are read to; None: new memory.

    calls: calls of the thread that plans steps.

    Raises ConfigError when the directory cannot be written or other users can write to it.
    """

    def __init__(
        self,
        directory: str | Path,
        fingerprint: str,
        capacity: int,
        page_bytes: int,
        *,
        argument: str = "--kv-offloading-disk-path",
        secret: bytes = b"",
        new_page: NewPage | None = None,
    ) -> None:
        self.directory = Path(directory) / fingerprint
        super().__init__(f"in {self.directory}")
        self.fingerprint = fingerprint
        self.page_bytes = page_bytes
        self._secret = secret
        self._memory = PageMemory(page_bytes, new_page)
        self._marks = PageMarks(lambda: self.writer.directory)
        calls = self._marks.placed, self._dropped
        try:
            self.writer = within(OPEN_S, lambda: PageWriter(Path(directory), fingerprint, capacity, secret, *calls))
        except UnsafeDirectoryError as error:
            raise ConfigError([f"{argument} {directory}: {error}."]) from error
        except OSError as error:
            problem = f"the directory cannot be made ({error.strerror})"
            raise ConfigError([f"{argument} {directory}: {problem}."]) from error
        if not self.writer.directory.writable:
            raise ConfigError([f"{argument} {directory}: the directory cannot be written."])
        self.writer.start()
        self.calls = LimitedCalls()
        self._is_cleared = True

    @property
    def is_late(self) -> bool:
        """Whether a call of the thread that plans steps still has no answer."""
        return self.calls.is_late

    @property
    def late_s(self) -> float:
        """Return the seconds since a call of the thread that plans steps became late; 0 when none is."""
        return self.calls.late_s

    def leave_alone(self) -> None:
        """Stop using a disk that does not answer, for a while."""
        self._failed("the disk does not answer")

    def may_have(self, group: int, key: PrefixKey) -> bool:
        """Whether there is a file for the block, or will be; also when the disk does not say so in time."""
        return self.calls.ask(lambda: self.contains(group, key), late=True)

    def expect(self, load: KVLoad) -> None:
        """Do nothing: a file is opened when its page is read."""

    def contains(self, group: int, key: PrefixKey) -> bool:
        """Whether there is a file for the block, or will be."""
        name = page_name(group, key)
        pending = self.writer.find(name)
        if pending is not None:
            return pending.key.payload == key.payload
        if not self._may_look_for(name):
            return False
        try:
            return self.writer.directory.has(name)
        except OSError as error:
            self._failed(error)
            return False

    def read(self, group: int, key: PrefixKey) -> Page | None:
        """Return the block's page, verified, or None. An invalid file is deleted, with a warning."""
        name = page_name(group, key)
        pending = self.writer.find(name)
        if pending is not None:
            return pending.page if pending.key.payload == key.payload else None
        if not self._may_look_for(name):
            return None
        try:
            with self.writer.directory.open(name) as file:
                page = read_page(file, self.fingerprint, group, key, self.page_bytes, self._secret, self._memory.take)
                with contextlib.suppress(OSError):  # for example on a disk that has become read-only
                    if os.fstat(file.fileno()).st_mtime <= time.time():  # otherwise a pin holds it until then
                        os.utime(file.fileno())
        except FileNotFoundError:
            self.writer.placed.discard(name)
            if self.contains(group, key):
                self._bad.add(name)  # remembered as invalid: opening it again would give the same result
            return None
        except PageError as error:
            logger.warning("The KV page %s is ignored: %s.", self.directory / name, error)
            self._faults.add(key, DAMAGED)
            self._condemn(name)
            with contextlib.suppress(OSError):
                self.writer.directory.remove(name)
            return None
        except OSError as error:
            self._condemn(name)
            self._failed(error)
            return None
        self._rest.end()
        self._accept(name, key)
        return page

    def prepare(self) -> Iterator[None]:
        """Make memory ready, a little with each step, for as many pages as a first load may have."""
        try:
            num_pages = self.writer.directory.count(self._memory.max_ahead)
        except OSError as error:
            self._failed(error)
            return
        for _ in range(num_pages):
            self._memory.write_ahead()
            yield

    def hold(self, owner: Hashable, names: Set[str], share: float, seconds: float) -> bool:
        """Hold pages for an owner, in place of those it had; False, and no change, where they are above the share.

        share: of the capacity that the pages held by this process may take. seconds: after which they give way like others.
        """
        return self._marks.hold(owner, names, int(share * self.writer.capacity) // self.page_bytes, seconds)

    def is_held(self, group: int, key: PrefixKey) -> bool:
        """Whether a pin of this process holds a page, written or not."""
        return self._marks.holds(page_name(group, key))

    def discard(self, group: int, key: PrefixKey) -> None:
        """Delete a page, written or not."""
        name = page_name(group, key)
        self.writer.forget(name)
        self._condemn(name)  # before the file is gone, which a slow disk may take long for
        self.calls.do(lambda: self._remove(name))

    def pages(self) -> Iterator[tuple[int, bytes]]:
        """List the pages (group, digest) that have files. Accesses the disk. Raises OSError."""
        if self._is_cleared:
            for name in self.writer.directory.names():
                if name not in self._bad:
                    digest, _, group = name.removesuffix(".kv").partition("-")
                    yield int(group), bytes.fromhex(digest)

    def clear(self) -> None:
        """Delete the pages of this fingerprint; queued ones are dropped, and no page is found until all is done."""
        self.writer.forget_all()
        self._is_cleared = False
        self.calls.do(self._sweep)

    def close(self, timeout_s: float = 10.0) -> None:
        """Finish writing and end the thread; pages not written by then are lost."""
        deadline = time.monotonic() + timeout_s
        self.calls.close()
        self.writer.close(timeout_s)
        self._marks.close(max(deadline - time.monotonic(), 0.0))

    def _name_of(self, group: int, key: PrefixKey) -> str:
        return page_name(group, key)

    def _remove(self, name: str) -> None:
        """Delete a page that was condemned, unless it has been written again."""
        if name not in self._bad:
            return
        try:
            self.writer.directory.remove(name)
        except OSError as error:
            self._failed(error)
        else:
            self._bad.discard(name)
            self.writer.placed.discard(name)  # written again meanwhile, and deleted here

    def _may_look_for(self, name: str) -> bool:
        if name in self._bad or self._rest.remaining:
            return False
        if not self._is_cleared:
            self._sweep()
        return self._is_cleared

    def _sweep(self) -> None:
        """Delete all pages; those that cannot be deleted are ignored from now on."""
        try:
            self._bad.update(self.writer.directory.remove_all())
            self.writer.placed.clear()
            self._is_cleared = True
        except OSError as error:
            self._failed(error)
