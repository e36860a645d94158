"""Copies between KV blocks and memory outside the pool, as a step plan carries them, and the keys of blocks there.

Owns: `KVTransfers`, `Page`, `PrefixKey`. Never does: copy or hash. Called by: the KV manager (requests copies), executors
(copy), KV connectors (keep pages by key).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Page = NDArray[np.uint8]
"""The bytes of one block in all layers of its group, uint8 [page_bytes]; never modified once created."""


class PrefixKey(NamedTuple):
    """Key of a full block, by which it is found in caches outside the pool.

    digest:  hash of the whole prefix.
    payload: the block's own token ids, 4 bytes each, then its adapter and media, if any. A page belongs to a block only when
             digest and payload agree.
    worth:   time of computing the block again, for each byte, as a multiple of that of a short prompt's.
    """

    digest: bytes
    payload: bytes
    worth: float = 1.0


@dataclass(slots=True)
class KVTransfers:
    """The copies of one step, made before it computes anything: first all saves, then copies of states, then all loads.

    number: identifies these transfers. saves: ids of the blocks whose bytes the step's result returns, in this order. loads:
    (block id, page to copy into it).
    """

    number: int
    saves: list[int]
    loads: list[tuple[int, Page]]
