"""What a tier behind host memory does, whether it is a disk or other engines.

Owns: `SlowTier`. Never does: anything. Called by: `KVTiers`, `PageSource`, `PageReader` and `BlockSaver`, which know
tiers by it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Set
from typing import Protocol

from core.api.kv_load import KVLoad
from core.api.kv_transfer import Page, PrefixKey


class ReadableTier(Protocol):
    """A tier that may be slow. All methods are called by the reader's thread."""

    def prepare(self) -> Iterator[None]:
        """Make ready what the first load needs, a little with each step; a load ends it."""
        ...

    def expect(self, load: KVLoad) -> None:
        """Note that the pages of a load are read next."""
        ...

    def contains(self, group: int, key: PrefixKey) -> bool:
        """Whether a page may be there."""
        ...

    def read(self, group: int, key: PrefixKey) -> Page | None:
        """Return the page, verified, or None."""
        ...


class SlowTier(ReadableTier, Protocol):
    """The rest is called by the thread that plans steps, so none of it may wait for the tier."""

    @property
    def num_dropped(self) -> int:
        """Pages that were not stored because the tier was too slow or failed."""
        ...

    @property
    def write_byte_s(self) -> float:
        """Processor's seconds that storing a byte took lately."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether a page passed now would be stored immediately."""
        ...

    @property
    def resting_s(self) -> float:
        """Seconds for which a failed tier is still not used."""
        ...

    @property
    def may_be_read(self) -> bool:
        """Whether it may currently be read."""
        ...

    @property
    def is_late(self) -> bool:
        """Whether a call of that thread still has no answer."""
        ...

    @property
    def late_s(self) -> float:
        """Seconds since a call of that thread became late; 0 when none is."""
        ...

    def leave_alone(self) -> None:
        """Stop using a tier that does not answer, for a while."""
        ...

    def find(self, group: int, key: PrefixKey) -> Page | None:
        """Return the block's page if this process has it in memory, or None."""
        ...

    def holds(self, group: int, key: PrefixKey) -> bool:
        """Whether the tier needs no page of the block from here."""
        ...

    def may_have(self, group: int, key: PrefixKey) -> bool:
        """Whether the tier seems to have the block."""
        ...

    def write(self, group: int, key: PrefixKey, page: Page) -> None:
        """Store a page, at once or later."""
        ...

    def missing(self, key: PrefixKey) -> str:
        """Return why no page of a block is there, for explanations; empty: unknown."""
        ...

    def late(self, load: KVLoad) -> None:
        """Remember that the pages of a load came too late, for explanations."""
        ...

    def hold(self, owner: Hashable, names: Set[str], share: float, seconds: float) -> bool:
        """Hold pages for a pin, in place of those its owner had; False, and no change, where that is not possible."""
        ...

    def is_held(self, group: int, key: PrefixKey) -> bool:
        """Whether a pin of this process holds a page, here or not."""
        ...

    def discard(self, group: int, key: PrefixKey) -> None:
        """Never return a page that had wrong values."""
        ...

    def pages(self) -> Iterator[tuple[int, bytes]]:
        """List the pages (group, digest) that are there. Called by a thread of its own; may take long. Raises OSError."""
        ...

    def flush(self, timeout_s: float = 60.0) -> bool:
        """Wait until all pages are stored; False when that takes too long or the tier fails."""
        ...

    def clear(self) -> None:
        """Drop all pages."""
        ...

    def close(self, timeout_s: float = 10.0) -> None:
        """End its threads."""
        ...
