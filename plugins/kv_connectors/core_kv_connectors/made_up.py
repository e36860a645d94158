"""Blocks for every prompt without a model, as the KV connector `bench`: how fast is decoding behind a long prompt?

Owns: `MadeUp`. Never does: keep a block, or depend on tokens. Called by: the manifest of the connector `bench`.

Prompts then cost one block of computing, as if another engine had computed the rest. Answers mean nothing.
"""

from __future__ import annotations

import logging

import numpy as np

from core.api.kv_transfer import Page, PrefixKey
from core.kv.connector import KVConnector

logger = logging.getLogger(__name__)

NUM_PAGES = 8
"""Different pages: making one for each block would cost as much time as copying it."""
SMALL = np.array((0x3B, 0x3C, 0xBB, 0xBC), np.uint8)
"""Higher bytes of small numbers of either sign in float32, bfloat16 and float16, none of which is infinite or no number."""
LOW_LIMIT = 0x40
"""Limit on lower bytes, below which none is infinite or no number in any 8-bit float."""


class MadeUp(KVConnector):
    """Has a page of every block. page_bytes: of a page. seed: of the values, which are equal for equal seeds."""

    def __init__(self, page_bytes: int, seed: int) -> None:
        chance = np.random.default_rng(seed)
        values = chance.integers(0, LOW_LIMIT, (NUM_PAGES, page_bytes), np.uint8)
        high = values[:, 1::2]
        high[:] = SMALL[chance.integers(0, len(SMALL), high.shape)]
        self._pages = values
        logger.warning(
            "The KV connector bench: keys and values of prompts are MADE UP (seed %d); no answer of this engine means "
            "anything. Leave the connector out to serve.",
            seed,
        )

    def contains(self, group: int, key: PrefixKey) -> bool:
        """Whether `get` returns a page: always."""
        return True

    def get(self, group: int, key: PrefixKey) -> Page | None:
        """Return one of the pages, by the key and the group."""
        page: Page = self._pages[(key.digest[0] + group) % NUM_PAGES]
        return page
