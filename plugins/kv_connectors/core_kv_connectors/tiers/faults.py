"""Pages that are known to be missing for another reason than age, for explanations.

Owns: `Faults`: the newest of them, with the cause of each. Never does: decide whether a page may be used. Called by: the disk
tier and its threads, the connectors, and through them the explainer of misses.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from core.api.kv_load import KVLoad
from core.api.kv_transfer import PrefixKey

DAMAGED = "page_damaged"
NOT_SAVED = "not_saved"
LATE = "page_late"
MAX_FAULTS = 4096
"""Blocks that are remembered; a process with more has other sorrows than their causes."""


class Faults:
    """Causes by block. Any thread may call it."""

    def __init__(self) -> None:
        self._causes: OrderedDict[bytes, str] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, key: PrefixKey, cause: str) -> None:
        """Remember why no page of a block is there."""
        with self._lock:
            self._causes[key.digest] = cause
            if len(self._causes) > MAX_FAULTS:
                self._causes.popitem(last=False)

    def late(self, load: KVLoad) -> None:
        """Remember that a load was over before the page of the first block came that its sequence lacked.

        What comes after it may not be stored at all.
        """
        groups = range(len(load.in_pool))
        for index, key in enumerate(load.keys):
            if any(not load.has(group, index) and (group, index) not in load.absent for group in groups):
                self.add(key, LATE)
                return

    def forget(self, key: PrefixKey) -> None:
        """Forget a block that is computed, or saved, again."""
        if self._causes:
            with self._lock:
                self._causes.pop(key.digest, None)

    def cause(self, key: PrefixKey) -> str:
        """Return the cause of a block's missing page; empty: unknown."""
        return self._causes.get(key.digest, "")
