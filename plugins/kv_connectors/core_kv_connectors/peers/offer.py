"""The pages that an engine offers to others, in host memory.

Owns: `Offer`: pages by name, bounded in bytes, and what has changed since a listener looked last. Never does: send anything.
Called by: the tier (writes), the threads of the listener (read).

A page is sent with the header that a page file would have, so that whoever gets it can verify it as one from a disk.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict, deque
from itertools import islice
from typing import NamedTuple

from core.api.kv_transfer import Page, PrefixKey
from core_kv_connectors.peers.messages import MOST_NAMES

NAME_BYTES = 16
MAX_CHANGES = 1 << 16
"""Changes that are remembered for listeners; one that is further behind is told everything anew."""


def name_of(group: int, key: PrefixKey) -> bytes:
    """Return the name of a page among engines: 16 bytes that depend on group, digest and tokens."""
    digest = hashlib.blake2b(group.to_bytes(2, "little") + key.digest, digest_size=NAME_BYTES)
    digest.update(key.payload)
    return digest.digest()


class Offered(NamedTuple):
    """A page and its key."""

    group: int
    key: PrefixKey
    page: Page


class Offer:
    """Pages, at most `capacity` bytes of them; those unused for longest leave first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.num_bytes = 0
        self._pages: OrderedDict[bytes, Offered] = OrderedDict()
        self._changes: deque[tuple[bytes, bool]] = deque(maxlen=MAX_CHANGES)
        self._num_changes = 0
        self._closed = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._pages)

    def get(self, name: bytes) -> Offered | None:
        """Return a page and mark it as used, or None."""
        with self._changed:
            found = self._pages.get(name)
            if found is not None:
                self._pages.move_to_end(name)
            return found

    def put(self, group: int, key: PrefixKey, page: Page) -> None:
        """Offer a page; a page larger than the limit is not offered."""
        name = name_of(group, key)
        if name in self._pages or page.nbytes > self.capacity:
            return
        with self._changed:
            while self.num_bytes + page.nbytes > self.capacity:
                self._remove(next(iter(self._pages)))
            self._pages[name] = Offered(group, key, page)
            self.num_bytes += page.nbytes
            self._note(name, is_added=True)

    def listed(self) -> list[tuple[int, bytes]]:
        """Return group and digest of each page."""
        with self._changed:
            return [(offered.group, offered.key.digest) for offered in self._pages.values()]

    def discard(self, name: bytes) -> None:
        """No longer offer a page."""
        with self._changed:
            if name in self._pages:
                self._remove(name)

    def clear(self) -> None:
        """No longer offer anything."""
        with self._changed:
            for name in list(self._pages):
                self._remove(name)

    def close(self) -> None:
        """Wake everybody who waits for changes; they get None."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def changes(self, since: int | None, wait_s: float) -> tuple[int, list[bytes], list[bytes], bool] | None:
        """Return (number, added, removed, is_new) since a number that was returned before, after at most `wait_s` seconds.

        since: None at first. is_new: whether `added` are all names there are. At most `MOST_NAMES` names come at once, except
        of those. Returns None once closed.
        """
        with self._changed:
            if since is not None:
                self._changed.wait_for(lambda: self._closed or self._num_changes > since, wait_s)
            if self._closed:
                return None
            if since is None or self._num_changes - since > len(self._changes):
                return self._num_changes, list(self._pages), [], True
            first = len(self._changes) - (self._num_changes - since)
            last = min(first + MOST_NAMES, len(self._changes))
            final: dict[bytes, bool] = {}
            for name, is_added in islice(self._changes, first, last):
                final[name] = is_added
            added = [name for name, is_added in final.items() if is_added]
            removed = [name for name, is_added in final.items() if not is_added]
            return since + last - first, added, removed, False

    def _remove(self, name: bytes) -> None:
        self.num_bytes -= self._pages.pop(name).page.nbytes
        self._note(name, is_added=False)

    def _note(self, name: bytes, *, is_added: bool) -> None:
        self._changes.append((name, is_added))
        self._num_changes += 1
        self._changed.notify_all()
