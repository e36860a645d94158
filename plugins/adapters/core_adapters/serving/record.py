"""The adapters of an engine, as the next engine learns of them.

Owns: `KeptAdapter`, `AdaptersRecord`, and the place of the record in the file that engines inherit. Never does: read an
adapter. Called by: the adapters' observer.
"""

from __future__ import annotations

from typing import Final

import msgspec

from core.api.adapters import AdapterFacts, AdapterSource
from core_supervision.persistent_flags import PersistentRecord

OFFSET: Final = 1 << 32
"""Where the record lies in the file of the lifecycle's record, behind both places of that one."""


class KeptAdapter(msgspec.Struct):
    """An adapter that was read.

    names:          names that stand for it; none: it is used until the last of its requests has ended.
    pinned:         whether it stays in memory while it is unused.
    is_resident:    whether it is in memory.
    weight_version: version of the base's weights when it was read first.
    """

    source: AdapterSource
    facts: AdapterFacts
    names: list[str] = []
    pinned: bool = False
    is_resident: bool = False
    weight_version: str = ""


class AdaptersRecord(msgspec.Struct):
    """All adapters of an engine, the least recently used first. number: counts the changes of their names."""

    number: int = 0
    adapters: list[KeptAdapter] = []


def storage(descriptor: int | None) -> PersistentRecord[AdaptersRecord]:
    """Return the record in a file. descriptor: of the file; None: nothing outlives this engine."""
    return PersistentRecord(descriptor, AdaptersRecord, OFFSET)
