"""Beginnings of prompts that were computed lately, so that a request's cached tokens can be guessed without the engine.

Owns: `SeenPrefixes`, a bounded table of hashes. Never does: know blocks: what the engine has evicted since may still be here.
Called by: the forecast.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

STRIDE = 64
"""Tokens from one known beginning to the next."""


class SeenPrefixes:
    """The beginnings of recent prompts. room: tokens that the engine's cache holds."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._seen: OrderedDict[int, None] = OrderedDict()

    def look(self, token_ids: Sequence[int], owner: Hashable, *, remember: bool = True) -> int:
        """Return how many leading tokens were seen of the same owner, and remember all of them. At least one is left over.

        owner: everything besides tokens by which prompts share no cache. remember: whether the prompt is computed next.
        """
        seen, found, key = self._seen, 0, hash(owner)
        is_known = True
        for end in range(STRIDE, len(token_ids), STRIDE):
            key = hash((key, *token_ids[end - STRIDE : end]))
            is_known = is_known and key in seen
            if is_known:
                found = end
            elif not remember:
                break
            if remember:
                seen[key] = None
                seen.move_to_end(key)
        while len(seen) > self.room // STRIDE:
            seen.popitem(last=False)
        return found
