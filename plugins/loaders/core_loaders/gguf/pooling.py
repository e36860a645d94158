"""The pooling declared by a GGUF file.

Owns: the values of its metadata key. Never does: choose how a model pools (the configuration does).
Called by: the loader, rows.
"""

from __future__ import annotations

from typing import Final

from core.api.pooling import PoolingKind
from core_loaders.gguf.source import Source

KEY: Final = "pooling_type"
KINDS: Final[dict[int, PoolingKind]] = {1: "mean", 2: "cls", 3: "last"}
RANK: Final = 4
"""Value for ranking: a classification head scores pairs of texts."""


def pooling_of(source: Source) -> int:
    """Return the file's value; 0 (none) without one. Raises CheckpointError for an unknown value."""
    return source.integer(KEY, 0, RANK, 0)


def pooling_kind(source: Source) -> PoolingKind | None:
    """Return the pooling of hidden states; None if the file does not declare one, or a head has its own."""
    return KINDS.get(pooling_of(source))
