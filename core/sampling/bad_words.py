"""The bad words of one sequence.

Owns: which tokens would complete one. Never does: touch logits. Called by: `core.sampling.state` and `adjust`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from core.sampling.noise import Ids


class BadWords:
    """Sorted so that a step looks only at the words that may end now, however many there are.

    words: non-empty sequences of token ids.
    """

    __slots__ = ("_by_token_before", "_longest", "_singles")

    def __init__(self, words: Sequence[Sequence[int]]) -> None:
        self._singles: Ids = np.array([word[0] for word in words if len(word) == 1], dtype=np.int64)
        self._by_token_before: dict[int, list[tuple[int, ...]]] = {}
        for word in words:
            if len(word) > 1:
                self._by_token_before.setdefault(word[-2], []).append(tuple(word))
        self._longest = max((len(word) for word in words), default=0)

    def __bool__(self) -> bool:
        return self._longest > 0

    def ends(self, output_token_ids: Sequence[int], drafts: Sequence[int]) -> Ids:
        """Last tokens of the words whose other tokens end the output and `drafts` (the prompt does not count)."""
        before = drafts[-1:] or output_token_ids[-1:]
        candidates = self._by_token_before.get(before[0]) if before else None
        if candidates is None:
            return self._singles
        start = max(0, len(output_token_ids) - self._longest)
        recent = (*output_token_ids[start:], *drafts)
        ends = [word[-1] for word in candidates if recent[1 - len(word) :] == word[:-1]]
        return np.concatenate([self._singles, np.array(ends, dtype=np.int64)])
