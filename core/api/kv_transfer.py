"""Copies between KV blocks and memory outside the pool, as a step plan carries them.

Owns: `KVTransfers`. Never does: copy. Called by: the KV tiers (they ask), executors (they copy).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Page = NDArray[np.uint8]
"""The bytes of one block in all layers of its group, uint8 [page_bytes]; never changed after it was made."""


@dataclass(slots=True)
class KVTransfers:
    """Made before anything else of a step: first all saves, then all loads.

    number: names them. saves: blocks whose bytes the result hands back, in this order. loads: (block id, page to fill it
    with).
    """

    number: int
    saves: list[int]
    loads: list[tuple[int, Page]]
