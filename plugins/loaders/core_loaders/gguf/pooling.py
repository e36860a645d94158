"""What a GGUF file says of pooling.

Owns: the numbers of its key. Never does: choose how a model pools (the configuration does).
Called by: the loader, rows.
"""

from __future__ import annotations

from typing import Final

from core.api.pooling import PoolingKind
from core_loaders.gguf.source import Source

KEY: Final = "pooling_type"
KINDS: Final[dict[int, PoolingKind]] = {1: "mean", 2: "cls", 3: "last"}
RANK: Final = 4
"""A head for classes scores pairs of texts."""


def pooling_of(source: Source) -> int:
    """The number in the file; 0, which stands for nothing, without one. Raises CheckpointError for an unknown one."""
    return source.integer(KEY, 0, RANK, 0)


def pooling_kind(source: Source) -> PoolingKind | None:
    """What becomes of hidden states; None: the file does not say, or a head has its own way."""
    return KINDS.get(pooling_of(source))
