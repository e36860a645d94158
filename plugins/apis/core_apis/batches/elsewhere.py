"""The files of batches that an API key has at other servers of this machine.

Owns: which key a directory of files belongs to. Never does: read the directory, or refuse. Called by: `BatchStore`, in threads.
"""

from __future__ import annotations

from collections.abc import Mapping

from core_apis.callers.tenant import Tenant
from core_frontend.queue.common import Column, CommonCounts


class CommonFiles:
    """Implements `core_apis.batches.store.Elsewhere`. owners: the keys whose files the directories are."""

    def __init__(self, counts: CommonCounts, owners: Mapping[str, Tenant]) -> None:
        self._counts = counts
        self._owners = owners

    def count(self, owner: str, used: int) -> int:
        """Tell other servers how many bytes an owner has here; return those of the others."""
        if owner not in self._owners:
            return 0
        key = self._owners[owner]
        self._counts.set(key, Column.BYTES, used)
        return self._counts.others(key, Column.BYTES)
