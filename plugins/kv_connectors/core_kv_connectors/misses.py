"""Causes of prefix-cache misses: why a sequence's first computed token was not cached.

Owns: `MissFinder`, the order of causes; `Explanations`, the KV connector `explain`. Never does: look for a hit, or
change a block. Called by: the manager, once per sequence whose request asks for it.
"""

from __future__ import annotations

from core.api.kv_transfer import PrefixKey
from core.api.sequence_record import CacheMiss, Scope
from core.kv.connector import KVConnector
from core.kv.explainer import CacheView
from core.kv.prefix_hit import PrefixHit
from core.kv.sequence import KVSequence
from core_kv_connectors.past import PastPrefixes


class MissFinder:
    """Determines the causes of misses in one KV manager. past: of earlier sequences; None: no history."""

    def __init__(self, cache: CacheView, past: PastPrefixes | None) -> None:
        self._keys = cache.keys
        self._prefixes = cache.prefixes
        self._keyed = [group for group, rule in enumerate(cache.growth) if rule.holds_slots]
        self._has_full = any(rule.needs_prefix for rule in cache.growth)
        self._block_size = cache.block_size
        self._past = past
        self._has_states = cache.has_states
        self._was_over_share = cache.was_over_share
        self._missing = cache.missing

    def remember(self, sequence: KVSequence) -> None:
        """Remember a sequence that is about to lose its blocks."""
        if self._past is not None:
            self._past.remember(sequence)

    def find(self, sequence: KVSequence, hit: PrefixHit) -> CacheMiss:
        """Return the cause for the token after `hit`, which is this sequence's current prefix hit."""
        index = hit.num_tokens // self._block_size
        most = (len(sequence.token_ids) - 1) // self._block_size
        if index >= most:
            return CacheMiss(hit.num_tokens, "last_block")
        key = self._keys.key(sequence, index)
        if any(self._prefixes.collides(key, group) for group in self._keyed):
            return CacheMiss(hit.num_tokens, "collision")
        fault = self._fault(sequence, index, most)
        if fault in ("page_damaged", "page_late"):  # there was a page of this very key
            return CacheMiss(hit.num_tokens, fault)
        # Only groups that keep every token show that the tokens themselves are known.
        if self._has_full and hit.num_known_tokens > hit.num_tokens:
            cause = fault or "state_not_kept" if self._has_states else self._evicted(key, fault)
            return CacheMiss(hit.num_tokens, cause)
        if self._past is None:
            return CacheMiss(hit.num_tokens, "first_seen")
        past_cause = self._past_cause(sequence, self._past, key, index, fault)
        return CacheMiss(hit.num_tokens, past_cause) if past_cause else self._new_tokens(sequence, self._past, index)

    def _past_cause(self, sequence: KVSequence, past: PastPrefixes, key: PrefixKey, index: int, fault: str) -> str:
        """Return why a block that some earlier sequence had is not there; empty when none had it."""
        if past.had(sequence, key):
            is_block = self._has_full or not self._has_states
            return self._evicted(key, fault) if is_block else fault or "state_not_kept"
        if past.other_adapter_had(sequence, index):
            return "other_adapter"
        return "other_tenant" if past.others_had(sequence, index) else ""

    def _fault(self, sequence: KVSequence, index: int, most: int) -> str:
        """Return what connectors know of a missing page: of the block at `index`, or of those after it that a hit may need.

        A window or a state that is missing at the end of a prefix makes the hit end long before it.
        """
        last = most if self._has_states or len(self._keyed) > 1 else index + 1
        return next(filter(None, (self._missing(self._keys.key(sequence, at)) for at in range(index, last))), "")

    def _evicted(self, key: PrefixKey, fault: str) -> str:
        """Return why a block that its tenant had is not there. fault: of its page."""
        is_over = any(self._was_over_share((group, key.digest)) for group in self._keyed)
        return "over_share" if is_over else fault or "evicted"

    def _new_tokens(self, sequence: KVSequence, past: PastPrefixes, index: int) -> CacheMiss:
        """Classify a block that was never cached: either no sequence came this far, or one continued with other tokens.

        Fewer common tokens than a block do not count: any two conversations begin with the template's words.
        """
        start = index * self._block_size
        num_common = past.num_common(sequence, index) if index else None
        if num_common is None:
            return CacheMiss(start, "first_seen")
        return CacheMiss(start, "history_changed", start + num_common)


class Explanations(KVConnector):
    """Explains misses. scope: what may be reported of earlier sequences. adapters: whether sequences may have some."""

    def __init__(self, scope: Scope = "own", *, adapters: bool = False) -> None:
        self._scope = scope
        self._adapters = adapters

    def explainer(self, cache: CacheView) -> MissFinder:
        """Return a finder for one KV manager, without any history."""
        past: PastPrefixes | None = None
        if self._scope != "off":
            across = self._scope == "all"
            past = PastPrefixes(
                cache.keys,
                cache.block_size,
                cache.num_blocks,
                across_tenants=across,
                across_adapters=self._adapters,
            )
        return MissFinder(cache, past)
