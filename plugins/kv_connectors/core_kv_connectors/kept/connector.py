"""Blocks that outlive the engine, as the KV connector `keep`.

Owns: `KeptBlocks`: which blocks have a record in the file, when it is written, and what the next engine adopts. Never does:
copy a block, or return a page: the blocks stay where they are. Called by: the manifest of the connector `keep`.

A cached block never changes. Its checksum is taken once, after the step that filled it, and verified when a sequence of the
next engine first uses it. A block without a record is not adopted.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import xxhash

from core.api.config import EngineConfig
from core.api.kv_transfer import Page, PrefixKey
from core.kv.connector import BlockCache, Copy, KVConnector
from core.kv.integrity import require
from core_kv_connectors.kept.file import KeptFile, Record
from core_kv_connectors.tiers.faults import DAMAGED, Faults

logger = logging.getLogger(__name__)

BUSY_BYTES = 8 << 20
"""Bytes whose checksums are taken after a step, in about four milliseconds."""
IDLE_BYTES = 16 << 20
IDLE_PAUSE_MS = 1


class Cached(NamedTuple):
    """What a cached block is about. parent: digest of the block before it."""

    group: int
    key: PrefixKey
    parent: bytes | None


class KeptBlocks(KVConnector):
    """The records of the cached blocks in `file`. fingerprint, page_bytes: as for other connectors."""

    argument = "keep_kv"

    def __init__(self, file: KeptFile, fingerprint: Callable[[], str], page_bytes: int) -> None:
        self._file = file
        self._num_at_once = max(BUSY_BYTES // max(page_bytes, 1), 1)
        self._num_idle = max(IDLE_BYTES // max(page_bytes, 1), 1)
        self._faults = Faults()
        self._clock = 0
        self._number = 0
        self._offered: dict[int, Cached] = {}
        self._unverified: dict[int, bytes] = {}
        self._waiting: OrderedDict[int, Cached] = OrderedDict()
        self._reading: dict[tuple[int, PrefixKey], int] = {}
        self._cached: dict[int, Cached] = {}
        self._recorded: set[int] = set()
        if file.fingerprint != fingerprint():
            file.begin(fingerprint())

    def kept_blocks(self) -> list[tuple[int, int, PrefixKey, bytes | None]]:
        """Return the recorded blocks: those used longest ago first, of those used together the newest."""
        found = sorted(self._file.records(), key=lambda kept: (kept.used, -kept.record.number))
        rows: list[tuple[int, int, PrefixKey, bytes | None]] = []
        for used, block_id, record in found:
            key = PrefixKey(record.digest, record.payload)
            self._offered[block_id] = Cached(record.group, key, record.parent)
            self._unverified[block_id] = record.checksum
            self._clock = max(self._clock, used + 1)
            self._number = max(self._number, record.number)
            rows.append((block_id, record.group, key, record.parent))
        return rows

    def damaged(self, block_ids: Sequence[int]) -> list[int]:
        """Verify the blocks of an earlier engine among these, each once."""
        if not self._unverified:
            return []
        wrong: list[int] = []
        for block_id in block_ids:
            expected = self._unverified.get(block_id)
            if expected is None:
                continue
            if self._file.checksum(block_id) == expected:
                del self._unverified[block_id]
            else:
                logger.error("A kept block of the KV cache has changed in memory; its tokens are computed again.")
                wrong.append(block_id)
                self._faults.add((self._cached.get(block_id) or self._offered[block_id]).key, DAMAGED)
        return wrong

    def missing(self, key: PrefixKey) -> str:
        """Return why a kept block was not used, if its bytes had changed."""
        return self._faults.cause(key)

    def stored(self, block_id: int, group: int, key: PrefixKey, parent: bytes | None) -> None:
        """Note a block whose checksum is to be taken, unless it has been."""
        cached = Cached(group, key, parent)
        self._faults.forget(key)
        if self._offered.pop(block_id, None) == cached:
            self._recorded.add(block_id)
        elif block_id not in self._cached:
            self._waiting[block_id] = cached
        self._cached[block_id] = cached

    def reused(self, block_id: int) -> None:
        """Note when a block is used, so that the next engine evicts it in this order."""
        if block_id in self._recorded:
            self._file.touch(block_id, self._clock)

    def removed(self, block_id: int, group: int, key: PrefixKey, *, valid: bool) -> None:
        """Drop the record of a block before other values are written there."""
        self._cached.pop(block_id, None)
        self._waiting.pop(block_id, None)
        self._unverified.pop(block_id, None)
        self._reading.pop((group, key), None)
        if block_id in self._recorded:
            self._recorded.discard(block_id)
            self._file.erase(block_id)

    def wants(self, group: int, key: PrefixKey) -> bool:
        """Never: a block that leaves the pool is not kept."""
        return False

    def after_step(self, cache: BlockCache) -> None:
        """Have the next step return blocks for their checksums."""
        self._clock += 1
        for block_id in self._offered:  # an earlier engine's that the pool did not adopt
            self._unverified.pop(block_id, None)
            self._file.erase(block_id)
        self._offered.clear()
        cache.register_starting()
        self._read_some(cache, self._num_at_once)

    def save_idle(self, cache: BlockCache, copy: Copy) -> int | None:
        """Take the checksums of a few blocks while no request runs."""
        if not self._waiting and not self._reading:
            return None
        number = self._number
        self._read_some(cache, self._num_idle)
        is_done = not cache.copy_now(copy) or self._number == number
        return None if is_done or not self._waiting else IDLE_PAUSE_MS

    def put(self, group: int, key: PrefixKey, page: Page, *, evicted: bool) -> None:
        """Record a block, of which this page is a copy."""
        block_id = self._reading.pop((group, key), None)
        if block_id is None:
            return
        self._number += 1
        checksum = xxhash.xxh3_128_digest(page.data)
        record = Record(self._number, group, key.digest, key.payload, self._cached[block_id].parent, checksum)
        if self._file.write(block_id, record, self._clock):
            self._recorded.add(block_id)

    def lost(self, group: int, key: PrefixKey) -> None:
        """Try again later."""
        block_id = self._reading.pop((group, key), None)
        if block_id is not None:
            self._waiting[block_id] = self._cached[block_id]

    def cleared(self) -> None:
        """Drop all records."""
        self._forget(self._file.fingerprint)

    def pool_replaced(self) -> None:
        """Drop all records: the new pool begins empty."""
        self._forget(self._file.fingerprint)

    def use_weights(self, config: EngineConfig, fingerprint: Callable[[], str]) -> None:
        """Drop all records; later ones are about the new weights."""
        self._forget(fingerprint())

    def check_integrity(self) -> None:
        """Raise `IntegrityError` unless just the recorded blocks have a record."""
        found = {kept.block_id for kept in self._file.records()} - self._offered.keys()
        require(found == self._recorded, "kept_blocks", f"{len(found)} records, {len(self._recorded)} are counted")
        require(self._recorded <= self._cached.keys(), "kept_blocks", "a block with a record is not cached")

    def _forget(self, fingerprint: str) -> None:
        for known in (self._offered, self._unverified, self._waiting, self._reading, self._cached, self._recorded):
            known.clear()
        self._file.begin(fingerprint)

    def _read_some(self, cache: BlockCache, count: int) -> None:
        for _ in range(min(count, len(self._waiting))):
            block_id, cached = self._waiting.popitem(last=False)
            self._reading[cached.group, cached.key] = block_id
            cache.save(block_id, cached.group, cached.key, self)
