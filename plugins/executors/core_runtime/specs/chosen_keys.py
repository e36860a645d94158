"""The room in which an attention backend lays the chosen keys of some rows next to one another.

Owns: its size. Never does: allocate. Torch-free. Called by: the memory plan, and backends that gather keys.
"""

from __future__ import annotations

from core.api.specs import LatentSpec

SPAN = 128
"""Keys of which a row's room is a multiple: a span of the attention kernels."""


def row_keys(top_k: int) -> int:
    """Return the keys for which a row has room."""
    return -(-top_k // SPAN) * SPAN


def rows_together(row_bytes: int, rows: int, limit: int) -> int:
    """Return how many of `rows` attend together: as many as have room in `limit` bytes, and at least one."""
    return min(rows, max(1, limit // row_bytes))


def gathered_bytes(spec: LatentSpec, item_bytes: int, rows: int, limit: int) -> int:
    """Return the bytes of the room of a layer for a step of `rows` rows; 0 without an index.

    item_bytes: of a number of the cache. limit: of the room, unless one row takes more.
    """
    if spec.index is None:
        return 0
    row_bytes = row_keys(spec.index.top_k) * (spec.rank + spec.rope_size) * item_bytes
    return rows_together(row_bytes, rows, limit) * row_bytes
