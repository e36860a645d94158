"""Host memory and disk that keep only blocks which several requests had, or which were part of a prompt.

Owns: `FilteredTiers`: the counts, and the blocks that wait until they are worth a page. Never does: keep pages. Called by: the
manifest of the connector `tiers`, for the keys `store_threshold` and `offload_prompt_only` of vLLM's OffloadingConnector.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from core.api.config import EngineConfig
from core.api.kv_transfer import PrefixKey
from core.kv.connector import BlockCache
from core_kv_connectors.tiers.faults import NOT_SAVED
from core_kv_connectors.tiers.local import LocalTiers
from core_kv_connectors.tiers.page_memory import NewPage

MAX_COUNTED = 1 << 16
"""Maximum number of blocks that are counted. Of those forgotten counting begins again."""

Name = tuple[int, bytes]
"""Group and digest of a block."""


class FilteredTiers(LocalTiers):
    """Tiers with a rule for what they keep. States are kept whenever they are reported, and what a pin holds.

    store_threshold: number of requests that must have had a block. prompt_only: whether one must have had it in its prompt.
    config, fingerprint, page_bytes, new_page: as for `LocalTiers`.

    Raises ConfigError.
    """

    def __init__(
        self,
        config: EngineConfig,
        fingerprint: Callable[[], str],
        page_bytes: int,
        new_page: NewPage | None = None,
        *,
        store_threshold: int,
        prompt_only: bool,
    ) -> None:
        self._threshold = store_threshold
        self._prompt_only = prompt_only
        self._num_tables = len(config.cache.groups) or 1
        self._counts: OrderedDict[Name, int] = OrderedDict()
        self._answers: OrderedDict[Name, None] = OrderedDict()
        self._blocks: dict[int, tuple[int, PrefixKey, bytes | None]] = {}
        super().__init__(config, fingerprint, page_bytes, new_page)

    def wants(self, group: int, key: PrefixKey) -> bool:
        """Whether a block is worth a page that is missing."""
        return self._keeps(group, key) and super().wants(group, key)

    def missing(self, key: PrefixKey) -> str:
        """Return why no page of a block is here: one that is not worth a page is not saved."""
        is_left_out = not all(self._keeps(group, key) for group in range(self._num_tables))
        return NOT_SAVED if is_left_out else super().missing(key)

    def stored(self, block_id: int, group: int, key: PrefixKey, parent: bytes | None) -> None:
        """Count a block that a request has computed."""
        self._blocks[block_id] = (group, key, parent)
        self._answers.pop((group, key.digest), None)  # `answered` follows if it is one again
        self._count(group, key)
        if self._keeps(group, key):
            super().stored(block_id, group, key, parent)

    def answered(self, block_id: int) -> None:
        """Note that a block which was just stored has tokens of an answer."""
        if self._prompt_only and block_id in self._blocks:
            group, key, _ = self._blocks[block_id]
            self._answers[group, key.digest] = None
            if len(self._answers) > MAX_COUNTED:
                self._answers.popitem(last=False)
            if not self._keeps(group, key):
                self._unsaved.removed(block_id, group, key)

    def reused(self, block_id: int) -> None:
        """Count a block that another request has in its prompt."""
        if block_id not in self._blocks:
            return
        group, key, parent = self._blocks[block_id]
        kept = self._keeps(group, key)
        self._answers.pop((group, key.digest), None)
        self._count(group, key)
        if not kept and self._keeps(group, key):
            super().stored(block_id, group, key, parent)

    def removed(self, block_id: int, group: int, key: PrefixKey, *, valid: bool) -> None:
        """Drop a block that is no longer cached; it is still counted."""
        self._blocks.pop(block_id, None)
        super().removed(block_id, group, key, valid=valid)

    def pool_replaced(self) -> None:
        """Drop the blocks: nothing is cached any more."""
        self._blocks.clear()
        super().pool_replaced()

    def cleared(self) -> None:
        """Drop pages, blocks and counts."""
        self._blocks.clear()
        self._counts.clear()
        self._answers.clear()
        super().cleared()

    def remember(self, cache: BlockCache) -> None:
        """Let `save_some` examine all cached blocks again that are worth a page."""
        self._unsaved.add(block for block in cache.cached_blocks() if self._keeps(*block[1:]))

    def _keeps(self, group: int, key: PrefixKey) -> bool:
        if group >= self._num_tables or self.is_held(group, key):
            return True
        name = (group, key.digest)
        return name not in self._answers and (self._threshold < 2 or self._counts.get(name, 0) >= self._threshold)

    def _count(self, group: int, key: PrefixKey) -> None:
        if self._threshold < 2:
            return
        name = (group, key.digest)
        self._counts[name] = self._counts.pop(name, 0) + 1  # the newest last
        if len(self._counts) > MAX_COUNTED:
            self._counts.popitem(last=False)
