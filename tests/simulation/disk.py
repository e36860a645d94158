"""Simulated files: the record that engines inherit, pages of the KV cache on disk.

Owns: `RecordFile` (its writes can be cut in two by a death, or fail), `StepsFile`, `SimDisk`. Never does: know what is written.
Called by: the product's own modules, in the place of `os` and of the disk tier.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from core.api.config import EngineConfig
from core.api.errors import ConfigError
from core.api.kv_load import KVLoad
from core.kv.hashing import PrefixKey
from core_kv_connectors.tiers.host import HostTier
from core_kv_connectors.tiers.page_reader import PageReader
from core_supervision.link.shared_file import STEPS_NBYTES

CLEARED_NBYTES = 4096
"""More of the file of steps than one schedule writes."""

Point = Callable[[str], None]
"""Called with the name of a place at which an engine may die or a call may fail."""


class RecordFile:
    """The part of `os` that records of `core_supervision.persistent_flags` use, over files in memory."""

    def __init__(self) -> None:
        self.point: Point = lambda name: None
        self._pieces: dict[int, dict[int, bytes]] = {}

    def clear(self) -> None:
        """A new schedule begins."""
        self._pieces.clear()

    def pread(self, descriptor: int, count: int, offset: int) -> bytes:
        piece = self._pieces.get(descriptor, {}).get(offset, b"")
        return piece[:count]

    def pwrite(self, descriptor: int, data: bytes, offset: int) -> int:
        self.point("record.write")
        self._pieces.setdefault(descriptor, {})[offset] = bytes(data)
        self.point("record.written")
        return len(data)

    def fstat(self, descriptor: int) -> SimpleNamespace:
        """No adapter was sent, so nothing lies behind the records."""
        return SimpleNamespace(st_size=0)


class StepsFile:
    """The parts of `os` and `mmap` that `core_supervision.watch.breadcrumbs` uses, over one file in memory."""

    def __init__(self) -> None:
        self._view = memoryview(bytearray(STEPS_NBYTES))

    def clear(self) -> None:
        """A new schedule begins."""
        self._view[:CLEARED_NBYTES] = bytes(CLEARED_NBYTES)

    def mmap(self, descriptor: int, count: int) -> memoryview:
        return self._view

    def pread(self, descriptor: int, count: int, offset: int) -> bytes:
        return bytes(self._view[offset : offset + count])


class SimDisk(HostTier):
    """A directory of KV pages. They outlive engines, and are there at once."""

    stores: dict[str, SimDisk]  # of the schedule that runs, by fingerprint
    point: Point

    is_ready, may_be_read, num_dropped, resting_s, write_byte_s = True, True, 0, 0.0, 0.0

    def __new__(cls, directory: str, fingerprint: str, capacity: int, page_bytes: int, new_page: object) -> SimDisk:
        store = cls.stores.get(fingerprint)
        if store is None:
            store = super().__new__(cls)
        return store

    def __init__(self, directory: str, fingerprint: str, capacity: int, page_bytes: int, new_page: object) -> None:
        try:
            self.point("disk.open")
        except OSError as error:
            raise ConfigError([f"{directory} cannot be used: {error.strerror}."]) from None
        if fingerprint not in self.stores:
            super().__init__(capacity)
            self.stores[fingerprint] = self

    def find(self, group: int, key: PrefixKey) -> None:
        """No page is on its way."""

    def flush(self, timeout_s: float) -> bool:
        return True

    def leave_alone(self) -> None:
        pass

    def close(self, timeout_s: float) -> None:
        pass


def fingerprint(config: EngineConfig, numerics: str) -> str:
    """As `core.kv.fingerprint.fingerprint`, of what differs here: the weights."""
    weights = config.weights
    return ",".join([numerics, *(source.path or source.digest for source in weights.sources)])


class SimPageReader(PageReader):
    """Reads pages when they are asked for, without a thread."""

    def begin(self) -> None:
        """There is no thread."""

    def start(self, load: KVLoad, *, is_unsure: bool = False) -> None:
        self.loads.add(load)
        self._fill(load)
        load.finish()
